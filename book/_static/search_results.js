// Orders what the search finds: a glossary entry first, then the pages that say most about the words, chapters before
// other pages. Sphinx defines the results; book/_ext/search_results.py puts in front of this, as PAGES, for each page
// its title in the sidebar, its first sentence, how often it has its most frequent words, and the terms that it
// defines.
const plain = (text) => text.toLowerCase().match(/[a-z]{3,}/g)?.map((word) => word.replace(/s+$/, "")) ?? [];
const query = new URLSearchParams(location.search).get("q") ?? "";
const asked = plain(query);

const relevance = (page, name) => {
  const [title, , counts] = page;
  const titled = asked.length && asked.every((word) => plain(title).includes(word));
  const often = asked.map((word) => Math.log2(1 + (counts[word] ?? 0)));
  const chapter = /^notebooks\/\d/.test(name) ? 2 : 0;
  const oneHead = /^book\/head_dump\//.test(name) ? -10 : 0;
  return often.reduce((sum, n) => sum + n, 0) + chapter + oneHead + (titled ? 5 : 0);
};

var Scorer = {
  // A result is [page, title, anchor, description, score, file]; what it shows is changed in place.
  score: (result) => {
    const [name, , anchor, description, score] = result;
    const page = PAGES[name];
    if (!page) return score;
    const term = page[3][anchor.slice(1)];
    if (term) {
      [result[1], result[3]] = term;
      return 1000 + score;
    }
    if (description) return query.includes("_") ? 1000 + score : score; // a function of the library
    if (!anchor) result[3] = page[1];
    return relevance(page, name) * 10 + (anchor ? score / 10 : 0);
  },
  // As in Sphinx:
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

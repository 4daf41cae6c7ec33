// Orders what the search finds: a glossary entry first, then the answer to a question, then the pages that say most
// about the words, chapters before other pages. Sphinx defines the results and the stop words;
// book/_ext/search_results.py puts in front of this, as PAGES, for each page its title in the sidebar, its first
// sentence, how often it has its most frequent words, the terms that it defines, and the questions that it answers.
stopwords.push("can", "do", "does", "how", "one", "what", "which", "why"); // a page need not have these words
const plain = (text) =>
  (text.toLowerCase().match(/[a-z]{2,}/g) ?? [])
    .filter((word) => !stopwords.includes(word))
    .map((word) => word.replace(/s+$/, ""));
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

// The question that has most of the words, those of its title counted twice: [anchor, title, sentence, words in the
// title, words in all].
const answer = (page) => {
  const has = (text) => asked.filter((word) => plain(text).includes(word)).length;
  return Object.entries(page[4])
    .map(([id, [title, about, words]]) => [id, title, about, has(title), has(words)])
    .sort((a, b) => 2 * b[3] + b[4] - 2 * a[3] - a[4])[0];
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
    const [id, title, about, titled, said] = answer(page) ?? [];
    if (titled || said) {
      [result[1], result[2], result[3]] = [title, `#${id}`, about];
      if (asked.length > 2 && titled >= asked.length / 2) return 500 + score;
      return Math.max(75 * titled, said === asked.length ? 25 * said : 0, relevance(page, name) * 10);
    }
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

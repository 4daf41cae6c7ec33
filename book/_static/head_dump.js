// The tables of the head dump (`head_table` in book_build/pages/dump_pages.py): search and sorting, by DataTables.
itables.then(({ default: DataTable, set_or_remove_dark_class: followTheme }) => {
  const TOKENS = [1, 2, 3]; // columns with a search of their own; only the first of them is sorted
  const drawn = () => dispatchEvent(new Event("tc-drawn")); // tables.js marks what scrolls
  followTheme();
  for (const table of document.querySelectorAll(".head-dump table")) {
    new DataTable(table, {
      order: [], // as written: by rank
      autoWidth: false,
      pageLength: 50,
      lengthMenu: [25, 50, 100, { label: "all", value: -1 }],
      search: { smart: false }, // literally, for tokens like != and "
      layout: { topStart: "search", topEnd: "pageLength" },
      language: { search: "Search all columns", lengthMenu: "_MENU_ rows",
        info: "_START_ to _END_ of _TOTAL_ source tokens", infoEmpty: "none", infoFiltered: "(_MAX_ in all)",
        zeroRecords: "No row contains this text." },
      drawCallback: drawn,
      columnDefs: [{ targets: TOKENS.slice(1), orderable: false }],
      initComplete() {
        addColumnSearch(this.api());
        drawn();
      },
    });
  }

  // A second row of titles, with a search for each column of tokens.
  function addColumnSearch(table) {
    const row = table.table().header().insertRow();
    table.columns().every(/** @this {any} */ function (i) {
      const cell = row.appendChild(document.createElement("th"));
      if (!TOKENS.includes(i)) return;
      const input = cell.appendChild(document.createElement("input"));
      input.type = "search";
      input.setAttribute("aria-label", `Search the column ${this.header().innerText.trim()}`);
      input.placeholder = "search";
      input.addEventListener("input", () => this.search(input.value, { smart: false }).draw());
    });
  }
});

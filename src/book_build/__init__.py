"""The book from its notebooks: `build` runs them and writes the pages, `store` keeps what each gave, `pages` generates
others. Nothing is imported here: every kernel that `forks` starts has imported this package."""

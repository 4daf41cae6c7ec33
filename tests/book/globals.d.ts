// What the scripts of the pages have from elsewhere, for `tsc --checkJs`.
declare const itables: Promise<any>; // book/_static/datatables
declare const PAGES: Record<string, [ // book/_ext/search_results.py
  string, string, Record<string, number>, Record<string, [string, string]>, Record<string, [string, string, string]>
]>;
declare const stopwords: string[]; // of Sphinx's search

interface Window {
  MathJax?: any;
  pageData: (facts: any, bytes?: string) => void;
  grow: any; // for tests
  play: any; // for the console
}

interface Element { // a number or a truth is written as it is
  setAttribute(name: string, value: string | number | boolean): void;
}

interface SVGScriptElement { // document.currentScript is never one
  src: string;
}

interface ParentNode { // what a selector finds is of HTML, except where its name says more
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K] | null;
  querySelector(selectors: string): HTMLElement | null;
  querySelectorAll<K extends keyof HTMLElementTagNameMap>(selectors: K): NodeListOf<HTMLElementTagNameMap[K]>;
  querySelectorAll(selectors: string): NodeListOf<HTMLElement>;
}

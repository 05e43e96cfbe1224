"use strict";
// Before anything is drawn, so that a page in the reader's own colours does not flash in the others.
document.documentElement.classList.add("js");
try {
  const kept = localStorage.getItem("pour-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch (error) {
  // A browser that keeps nothing still shows the page in the system's colours.
  document.documentElement.removeAttribute("data-theme");
}

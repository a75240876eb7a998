// A checkbox in the head of a table selects all rows of the page. It is hidden without this script.
"use strict";

for (const all of document.querySelectorAll(".fq-select-all")) {
    all.hidden = !all.closest("table").tBodies[0].querySelector("input[type=checkbox]");
}
// Live updates replace rows, so the boxes are looked up when they are needed.
document.addEventListener("change", (event) => {
    if (event.target.matches(".fq-select-all")) {
        for (const box of event.target.closest("table").tBodies[0].querySelectorAll("input[type=checkbox]")) {
            box.checked = event.target.checked;
        }
    }
});

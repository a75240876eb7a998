// A checkbox in the head of a table selects all rows of the page. It is hidden without this script.
"use strict";

for (const all of document.querySelectorAll(".fq-select-all")) {
    const boxes = all.closest("table").tBodies[0].querySelectorAll("input[type=checkbox]");
    all.hidden = boxes.length === 0;
    all.addEventListener("change", () => {
        for (const box of boxes) {
            box.checked = all.checked;
        }
    });
}

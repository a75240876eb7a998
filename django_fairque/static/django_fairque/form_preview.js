// Shows what a form would do while it is filled in: the next run times of a schedule, the shares that follow from a weight. The
// element with the preview has the address and the names of the fields that it depends on. Without this script the form works.
"use strict";

(() => {
    const preview = document.getElementById("fq-preview");
    const form = preview ? preview.closest("form") : null;
    if (!form) {
        return;
    }
    const names = preview.dataset.fields.split(" ");
    const pauseMilliseconds = 300;
    let timer = 0;
    let latest = 0;

    const show = async () => {
        const number = ++latest;
        const url = new URL(preview.dataset.url, window.location.href);
        for (const name of names) {
            url.searchParams.set(name, form.elements[name].value);
        }
        try {
            const answer = await fetch(url, { credentials: "same-origin" });
            if (answer.ok && !answer.redirected && number === latest) {
                preview.innerHTML = await answer.text();
            }
        } catch {
            // The site can't be reached for a moment: what is shown stays.
        }
    };

    form.addEventListener("input", (event) => {
        if (names.includes(event.target.name)) {
            window.clearTimeout(timer);
            timer = window.setTimeout(show, pauseMilliseconds);
        }
    });
})();

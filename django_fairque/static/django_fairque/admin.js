// Renews a page's content every few seconds while its tab is visible and nobody is filling in a form there. Without it everything works.
"use strict";

(() => {
    const content = document.getElementById("fq-content");
    const seconds = content ? Number(content.dataset.refresh) : 0;
    if (!seconds) {
        return;
    }
    const isBusy = () => content.contains(document.activeElement) && document.activeElement.matches("input, select, textarea");

    const renew = async () => {
        if (document.hidden || isBusy()) {
            return;
        }
        try {
            const answer = await fetch(window.location.href, { headers: { "X-Fairque-Fragment": "1" }, credentials: "same-origin" });
            if (answer.ok && !answer.redirected && !isBusy()) {
                const open = [...content.querySelectorAll("details[open][id]")].map((each) => each.id);
                content.innerHTML = await answer.text();
                for (const id of open) {
                    document.getElementById(id)?.setAttribute("open", "");
                }
            }
        } catch {
            // The site can't be reached for a moment: what is shown stays.
        }
    };

    window.setInterval(renew, seconds * 1000);
    document.addEventListener("visibilitychange", renew);
})();

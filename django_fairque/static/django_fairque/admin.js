// Keeps a page's content up to date in place and reports whether it is, and moves through its rows by keys. Without this script
// everything works: a reload shows the newest content.
"use strict";

(() => {
    const content = document.getElementById("fq-content");
    if (!content) {
        return;
    }
    const ANSWER_TIMEOUT_SECONDS = 10;
    const FAILURES_BEFORE_ALARM = 2;
    const isTyping = (node) => Boolean(node) && (node.matches("input, select, textarea") || node.isContentEditable);

    // --- keys: "/" for the search, "j" and "k" for the next and the previous row ---

    const rowLinks = () =>
        [...content.querySelectorAll("tbody tr")].map((row) => row.querySelector("th a, a, input, button")).filter(Boolean);

    const moveTo = (step) => {
        const links = rowLinks();
        const row = document.activeElement?.closest("tbody tr");
        const here = row ? links.findIndex((each) => row.contains(each)) : -1;
        const next = here < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, here + step));
        links[next]?.focus();
    };

    document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing || event.defaultPrevented || isTyping(event.target)) {
            return;
        }
        const search = content.querySelector("form[role=search] input:not([type=hidden]), form[method=get] input:not([type=hidden])");
        if (event.key === "/" && search) {
            event.preventDefault();
            search.focus();
            search.select();
        } else if (event.key === "j" || event.key === "k") {
            event.preventDefault();
            moveTo(event.key === "j" ? 1 : -1);
        }
    });

    // --- live updates ---

    const seconds = Number(content.dataset.refresh);
    const live = document.getElementById("fq-live");
    if (!live) {
        return;
    }
    const text = live.querySelector(".fq-live-text");
    const button = live.querySelector("button");
    const title = document.title.split(" | ").slice(1);
    let updatedAt = Date.now();
    let failures = 0;
    let isPaused = false;
    let isLoggedOut = false;
    let isUnderWay = false;

    const age = () => {
        const passed = Math.max(0, Math.round((Date.now() - updatedAt) / 1000));
        if (passed < 60) {
            return `${passed} s`;
        }
        return passed < 3600 ? `${Math.floor(passed / 60)} min` : `${Math.floor(passed / 3600)} h`;
    };

    const show = () => {
        if (!seconds) {
            text.textContent = live.dataset.still.replace("{age}", age());
            live.hidden = false;
            return;
        }
        const isBroken = failures >= FAILURES_BEFORE_ALARM;
        const state = isBroken ? (isLoggedOut ? "expired" : "broken") : isPaused ? "paused" : "live";
        const action = isBroken ? "reload" : isPaused ? "resume" : "pause";
        live.dataset.state = state;
        live.classList.toggle("fq-live-broken", isBroken);
        text.textContent = live.dataset[state].replace("{age}", age());
        button.textContent = live.dataset[action];
        live.hidden = false;
    };

    // Rows, and what is in them, keep their identity by the address or text of their head: a box that is checked for one task
    // must never end up checked for another.
    const giveKeys = (root) => {
        root.querySelectorAll("table").forEach((table, number) => {
            const counts = new Map();
            for (const row of table.querySelectorAll("tbody tr:not([id])")) {
                const box = row.querySelector("input[type=checkbox]");
                const head = row.querySelector("th");
                const key = box?.value ?? head?.querySelector("a")?.getAttribute("href") ?? head?.textContent ?? "";
                const count = counts.get(key) ?? 0;
                counts.set(key, count + 1);
                row.id = `fq-row-${number}-${count}-${key}`;
            }
        });
    };

    const isChanged = (node) => {
        if (node instanceof HTMLInputElement) {
            return node.type === "checkbox" || node.type === "radio" ? node.checked !== node.defaultChecked : node.type !== "hidden" && node.value !== node.defaultValue;
        }
        if (node instanceof HTMLTextAreaElement) {
            return node.value !== node.defaultValue;
        }
        return node instanceof HTMLOptionElement && node.selected !== node.defaultSelected;
    };

    // What a reader has opened, chosen or typed stays.
    const callbacks = {
        beforeNodeMorphed: (node) => !(
            (node instanceof HTMLTextAreaElement && isChanged(node))
            // charts.js has drawn in it.
            || (node instanceof HTMLElement && node.matches(".fq-plot"))
        ),
        beforeAttributeUpdated: (name, node) => !(
            (name === "open" && node.matches("details"))
            // select_all.js has shown it.
            || (name === "hidden" && node.matches(".fq-select-all"))
            || (["value", "checked", "selected"].includes(name) && isChanged(node))
        ),
    };

    const morph = (html) => {
        const fresh = new DOMParser().parseFromString(html, "text/html").body;
        const status = fresh.querySelector("#fq-status");
        const active = document.activeElement;
        if (status) {
            status.remove();
            Idiomorph.morph(document.getElementById("fq-status"), status, { callbacks });
            document.title = [status.dataset.word, ...title].join(" | ");
        }
        giveKeys(content);
        giveKeys(fresh);
        Idiomorph.morph(content, [...fresh.childNodes], { morphStyle: "innerHTML", callbacks });
        // Its row may have been moved, which takes the focus away.
        if (active?.isConnected && active !== document.activeElement) {
            active.focus({ preventScroll: true });
        }
    };

    const renew = async () => {
        if (document.hidden || isPaused || isUnderWay) {
            return;
        }
        isUnderWay = true;
        const abort = new AbortController();
        const timer = window.setTimeout(() => abort.abort(), ANSWER_TIMEOUT_SECONDS * 1000);
        try {
            const answer = await fetch(window.location.href, {
                headers: { "X-Fairque-Fragment": "1" }, credentials: "same-origin", redirect: "manual", signal: abort.signal,
            });
            // A redirect leads to the login, wherever that is.
            isLoggedOut = answer.type === "opaqueredirect";
            if (!answer.ok) {
                throw new Error(`answered ${answer.status}`);
            }
            const html = await answer.text();
            if (!isPaused) {
                morph(html);
                updatedAt = Date.now();
            }
            failures = 0;
        } catch {
            // What is shown stays, with its age.
            failures += 1;
        } finally {
            window.clearTimeout(timer);
            isUnderWay = false;
            show();
        }
    };

    button.hidden = !seconds;
    window.setInterval(show, 1000);
    show();
    if (!seconds) {
        return;
    }
    button.addEventListener("click", () => {
        if (failures >= FAILURES_BEFORE_ALARM) {
            window.location.reload();
            return;
        }
        isPaused = !isPaused;
        show();
        renew();
    });
    window.setInterval(renew, seconds * 1000);
    document.addEventListener("visibilitychange", renew);
})();

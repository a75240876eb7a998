// Moves and zooms the graph of dependencies: by dragging, with one finger or two, with Ctrl and the wheel, by buttons and by keys.
// Only the SVG's viewBox changes. Without this script the graph is shown at its full size, in an area that scrolls.
"use strict";

(() => {
    const content = document.getElementById("fq-content");
    if (!content?.querySelector("svg.fq-graph")) {
        return;
    }
    const LEAST_SCALE = 0.1, MOST_SCALE = 4, READABLE_SCALE = 0.75;
    const STEP = 1.25;
    // Pixels: of one key press; before a press of the pointer is a drag; of the drawing that stay in sight.
    const KEY_PIXELS = 60, DRAG_PIXELS = 4, KEPT_PIXELS = 40;
    // Live updates replace elements, so they are looked up when they are needed.
    const graph = () => content.querySelector("svg.fq-graph");
    const isInGraph = (node) => Boolean(graph()?.contains(node));
    // What is seen: the upper left corner in units of the drawing, and pixels for each unit.
    let view = null;
    const pointers = new Map();
    let travelled = 0;

    const sizeOf = (svg) => ({ width: Number(svg.getAttribute("width")), height: Number(svg.getAttribute("height")) });
    const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

    const whole = (svg) => {
        const { width, height } = sizeOf(svg), seen = svg.getBoundingClientRect();
        const scale = clamp(Math.min(seen.width / width, seen.height / height), LEAST_SCALE, 1);
        return { x: (width - seen.width / scale) / 2, y: (height - seen.height / scale) / 2, scale };
    };

    const apply = () => {
        const svg = graph(), seen = svg?.getBoundingClientRect();
        if (!seen?.width || !seen.height) {
            return;
        }
        if (!view) {
            view = whole(svg);
            if (view.scale < READABLE_SCALE) {
                view = { x: 0, y: 0, scale: READABLE_SCALE };
            }
        }
        const { width, height } = sizeOf(svg), kept = KEPT_PIXELS / view.scale;
        const across = seen.width / view.scale, down = seen.height / view.scale;
        view.x = clamp(view.x, kept - across, width - kept);
        view.y = clamp(view.y, kept - down, height - kept);
        const box = [view.x, view.y, across, down].map((each) => each.toFixed(2)).join(" ");
        if (svg.getAttribute("viewBox") !== box) {
            svg.setAttribute("viewBox", box);
        }
    };

    const pan = (x, y) => {
        view.x -= x / view.scale;
        view.y -= y / view.scale;
        apply();
    };

    // Around a point of the window; by default around the middle.
    const zoom = (factor, point) => {
        const seen = graph().getBoundingClientRect();
        const x = point ? point.x - seen.left : seen.width / 2, y = point ? point.y - seen.top : seen.height / 2;
        const scale = clamp(view.scale * factor, LEAST_SCALE, MOST_SCALE);
        view.x += x / view.scale - x / scale;
        view.y += y / view.scale - y / scale;
        view.scale = scale;
        apply();
    };

    const showAll = () => {
        view = whole(graph());
        apply();
    };

    content.addEventListener("pointerdown", (event) => {
        if (isInGraph(event.target) && (event.pointerType !== "mouse" || event.button === 0)) {
            travelled = pointers.size ? travelled : 0;
            pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
        }
    });

    const middleOf = (points) => ({
        x: points.reduce((sum, each) => sum + each.x, 0) / points.length,
        y: points.reduce((sum, each) => sum + each.y, 0) / points.length,
    });
    const spreadOf = ([first, second]) => (second ? Math.hypot(first.x - second.x, first.y - second.y) : 0);

    document.addEventListener("pointermove", (event) => {
        const svg = graph();
        if (!pointers.has(event.pointerId) || !svg) {
            return;
        }
        const before = [...pointers.values()];
        pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
        const after = [...pointers.values()];
        const from = middleOf(before), to = middleOf(after);
        travelled += Math.abs(to.x - from.x) + Math.abs(to.y - from.y);
        if (travelled <= DRAG_PIXELS && after.length === 1) {
            return;
        }
        if (!svg.hasPointerCapture(event.pointerId)) {
            svg.setPointerCapture(event.pointerId);
        }
        pan(to.x - from.x, to.y - from.y);
        if (spreadOf(before) && spreadOf(after)) {
            zoom(spreadOf(after) / spreadOf(before), to);
        }
    });

    for (const end of ["pointerup", "pointercancel"]) {
        document.addEventListener(end, (event) => pointers.delete(event.pointerId));
    }

    // The end of a drag is no click on the task below the pointer, and its link is not dragged away.
    content.addEventListener("click", (event) => {
        if (travelled > DRAG_PIXELS && isInGraph(event.target)) {
            event.preventDefault();
            event.stopPropagation();
        }
    }, { capture: true });
    content.addEventListener("dragstart", (event) => {
        if (isInGraph(event.target)) {
            event.preventDefault();
        }
    });

    content.addEventListener("wheel", (event) => {
        if ((event.ctrlKey || event.metaKey) && isInGraph(event.target)) {
            event.preventDefault();
            const pixels = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : 16);
            zoom(Math.exp(clamp(-pixels, -200, 200) / 400), { x: event.clientX, y: event.clientY });
        }
    }, { passive: false });

    const ACTIONS = { in: () => zoom(STEP), out: () => zoom(1 / STEP), all: showAll };
    content.addEventListener("click", (event) => {
        ACTIONS[event.target.closest("[data-zoom]")?.dataset.zoom]?.();
    });

    const KEYS = {
        ArrowLeft: () => pan(KEY_PIXELS, 0),
        ArrowRight: () => pan(-KEY_PIXELS, 0),
        ArrowUp: () => pan(0, KEY_PIXELS),
        ArrowDown: () => pan(0, -KEY_PIXELS),
        "+": ACTIONS.in,
        "=": ACTIONS.in,
        "-": ACTIONS.out,
        0: ACTIONS.all,
    };
    content.addEventListener("keydown", (event) => {
        const act = KEYS[event.key];
        if (act && event.target.closest(".fq-graph-view") && !(event.ctrlKey || event.altKey || event.metaKey)) {
            event.preventDefault();
            act();
        }
    });

    // A task that is reached by the keyboard comes into sight.
    content.addEventListener("focusin", (event) => {
        if (!isInGraph(event.target)) {
            return;
        }
        const seen = graph().getBoundingClientRect(), box = event.target.getBoundingClientRect();
        if (box.left < seen.left || box.right > seen.right || box.top < seen.top || box.bottom > seen.bottom) {
            pan((seen.left + seen.right - box.left - box.right) / 2, (seen.top + seen.bottom - box.top - box.bottom) / 2);
        }
    });

    content.classList.add("fq-zooms");
    apply();
    new MutationObserver(apply).observe(content, { childList: true, subtree: true, attributeFilter: ["viewBox"] });
    window.addEventListener("resize", apply);
})();

// Draws each chart of a page with uPlot (vendor/, version 1.6.32), with the values under the pointer. The page holds the same
// chart as an SVG image and as a table: without this script, that image is shown.
"use strict";

(() => {
    const content = document.getElementById("fq-content");
    if (!content || typeof uPlot === "undefined") {
        return;
    }
    const HEIGHT = 170;
    // Of each figure its plot, and the text from which that was drawn.
    const drawn = new Map();

    const shownMoment = (zone) => {
        const form = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
        return (seconds) => form.format(new Date(seconds * 1000));
    };

    const plot = (figure, place, chart) => {
        const ink = getComputedStyle(figure.querySelector(".fq-label-color"));
        const rule = getComputedStyle(figure.querySelector(".fq-grid")).stroke;
        const lines = [...figure.querySelectorAll(".fq-legend .fq-line")].map((each) => getComputedStyle(each));
        const moment = shownMoment(chart.zone);
        const readout = figure.querySelector(".fq-readout"), without = readout.textContent;
        const mark = getComputedStyle(figure.querySelector(".fq-mark") ?? figure);
        const axis = { stroke: ink.color, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 } };
        return new uPlot(
            {
                width: place.clientWidth,
                height: HEIGHT,
                legend: { show: false },
                cursor: { y: false, drag: { x: false, y: false } },
                tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), chart.zone),
                scales: { y: { range: [0, chart.top] } },
                axes: [
                    {
                        ...axis,
                        size: 32,
                        space: chart.dated ? 90 : 50,
                        values: (u, ticks) => ticks.map((each) => moment(each).slice(chart.dated ? 5 : 11)),
                    },
                    {
                        ...axis,
                        size: (u, labels) => 24 + 7 * Math.max(4, ...(labels ?? []).map((each) => each.length)),
                        splits: () => chart.levels.map(([value]) => value),
                        values: () => chart.levels.map(([, label]) => label),
                    },
                ],
                series: [
                    {},
                    ...chart.series.map((each, index) => ({
                        label: each.label,
                        stroke: lines[index].stroke,
                        width: 2,
                        dash: lines[index].strokeDasharray.match(/[\d.]+/g)?.map(Number),
                        points: { size: 4 },
                    })),
                ],
                hooks: {
                    draw: [
                        (u) => {
                            const { left, top, width, height } = u.bbox;
                            u.ctx.save();
                            u.ctx.strokeStyle = mark.stroke;
                            u.ctx.lineWidth = uPlot.pxRatio;
                            u.ctx.setLineDash([3 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
                            for (const [seconds] of chart.marks) {
                                const x = Math.min(u.valToPos(seconds, "x", true), left + width - uPlot.pxRatio);
                                u.ctx.beginPath();
                                u.ctx.moveTo(x, top);
                                u.ctx.lineTo(x, top + height);
                                u.ctx.stroke();
                            }
                            u.ctx.restore();
                        },
                    ],
                    setCursor: [
                        (u) => {
                            const at = u.cursor.idx;
                            const isShown = at !== null && at !== undefined && u.cursor.left >= 0;
                            const values = isShown ? chart.series.map((each) => `${each.label}: ${each.texts[at] ?? "–"}`) : [];
                            const near = chart.marks.filter(([seconds]) => Math.abs(u.valToPos(seconds, "x") - u.cursor.left) <= 6);
                            const texts = near.slice(-3).map(([, text]) => text);
                            readout.textContent = isShown ? [moment(chart.times[at]), ...values, ...texts].join("  ·  ") : without;
                        },
                    ],
                },
            },
            [chart.times, ...chart.series.map((each) => each.values)],
            place,
        );
    };

    const draw = (figure, isStale) => {
        const found = drawn.get(figure), text = figure.dataset.chart;
        if (found && !isStale && found.text === text && figure.contains(found.place)) {
            return;
        }
        found?.plot.destroy();
        found?.place.remove();
        const image = figure.querySelector(".fq-plot"), chart = JSON.parse(text), place = document.createElement("div");
        place.className = "fq-canvas";
        place.dir = "ltr";
        // The image stays for screen readers.
        place.setAttribute("aria-hidden", "true");
        image.after(place);
        drawn.set(figure, { plot: plot(figure, place, chart), place, text });
    };

    const drawAll = (isStale = false) => {
        for (const [figure, { plot: each }] of drawn) {
            if (!figure.isConnected) {
                each.destroy();
                drawn.delete(figure);
            }
        }
        content.querySelectorAll(".fq-chart[data-chart]").forEach((figure) => draw(figure, isStale));
    };

    drawAll();
    new MutationObserver(() => drawAll()).observe(content, { childList: true, subtree: true, attributeFilter: ["data-chart"] });
    new MutationObserver(() => drawAll(true)).observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
    window.addEventListener("resize", () => {
        for (const { plot: each, place } of drawn.values()) {
            each.setSize({ width: place.clientWidth, height: HEIGHT });
        }
    });
})();

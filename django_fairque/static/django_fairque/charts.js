// Draws the charts and sparklines of a page with uPlot (vendor/, version 1.6.32), with the values under the pointer. Without this
// script, the page shows a sentence for each line and a table of all values.
"use strict";

(() => {
    const content = document.getElementById("fq-content");
    if (!content || typeof uPlot === "undefined") {
        return;
    }
    const HEIGHT = 170;
    const SPARK = { width: 96, height: 24 };
    const DASHES = { dashed: [6, 4], dotted: [1, 4] };
    // By the element that holds it: the plot, and the text from which it was drawn.
    const drawn = new Map();

    const shownMoment = (zone) => {
        const form = new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
        return (seconds) => form.format(new Date(seconds * 1000));
    };

    // Colors come from the style sheet: of the sample before each line's sentence, and of the border and text of the place.
    const strokeOf = (item) => {
        const { borderTopColor, borderTopStyle } = getComputedStyle(item, "::before");
        return { stroke: borderTopColor, dash: DASHES[borderTopStyle] };
    };

    const drawMarks = (marks, stroke) => (u) => {
        const { left, top, width, height } = u.bbox;
        u.ctx.save();
        u.ctx.strokeStyle = stroke;
        u.ctx.lineWidth = uPlot.pxRatio;
        u.ctx.setLineDash([3 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
        for (const [seconds] of marks) {
            const x = Math.min(u.valToPos(seconds, "x", true), left + width - uPlot.pxRatio);
            u.ctx.beginPath();
            u.ctx.moveTo(x, top);
            u.ctx.lineTo(x, top + height);
            u.ctx.stroke();
        }
        u.ctx.restore();
    };

    // The texts of the values are in the table, the latest moment first; the columns of a chart begin after those before it.
    const showValues = (group, index, readout, moment) => (u) => {
        const at = u.cursor.idx;
        if (at === null || at === undefined || u.cursor.left < 0) {
            readout.textContent = "";
            return;
        }
        const column = group.charts.slice(0, index).reduce((count, chart) => count + chart.lines.length, 1);
        const row = content.querySelector("#fq-figures tbody").rows[group.times.length - 1 - at];
        const values = group.charts[index].lines.map(({ label }, line) => `${label}: ${row.cells[column + line].textContent}`);
        const near = group.marks.filter(([seconds]) => Math.abs(u.valToPos(seconds, "x") - u.cursor.left) <= 6);
        readout.textContent = [moment(group.times[at]), ...values, ...near.slice(-3).map(([, text]) => text)].join("  ·  ");
    };

    const plotChart = (place, text) => {
        const group = JSON.parse(text), figure = place.closest("figure");
        const index = [...figure.parentElement.children].indexOf(figure), { levels, lines } = group.charts[index];
        const { color, borderTopColor: rule } = getComputedStyle(place), moment = shownMoment(group.zone);
        const items = [...figure.querySelectorAll(".fq-line")];
        const axis = { stroke: color, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 } };
        const readout = document.createElement("p");
        readout.className = "fq-readout";
        const plot = new uPlot(
            {
                width: place.clientWidth,
                height: HEIGHT,
                legend: { show: false },
                cursor: { y: false, drag: { x: false, y: false } },
                tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), group.zone),
                scales: { y: { range: [levels[0][0], levels.at(-1)[0]] } },
                axes: [
                    {
                        ...axis,
                        size: 32,
                        space: group.dated ? 90 : 50,
                        values: (u, ticks) => ticks.map((each) => moment(each).slice(group.dated ? 5 : 11)),
                    },
                    {
                        ...axis,
                        size: (u, labels) => 24 + 7 * Math.max(4, ...(labels ?? []).map((each) => each.length)),
                        splits: () => levels.map(([value]) => value),
                        values: () => levels.map(([, label]) => label),
                    },
                ],
                series: [{}, ...lines.map((line, number) => ({ ...strokeOf(items[number]), width: 2, points: { size: 4 } }))],
                hooks: {
                    draw: [drawMarks(group.marks, strokeOf(items.at(-1)).stroke)],
                    setCursor: [showValues(group, index, readout, moment)],
                },
            },
            [group.times, ...lines.map(({ values }) => values)],
            place,
        );
        place.append(readout);
        return plot;
    };

    const plotSpark = (place, text) => {
        const values = JSON.parse(text), { color } = getComputedStyle(place);
        return new uPlot(
            {
                ...SPARK,
                legend: { show: false },
                cursor: { show: false },
                padding: [2, 1, 2, 1],
                axes: [{ show: false }, { show: false }],
                scales: { x: { time: false }, y: { range: [0, Math.max(1, ...values)] } },
                series: [{}, { stroke: color, width: 1.5, points: { show: false } }],
            },
            [values.map((_value, number) => number), values],
            place,
        );
    };

    const draw = (place, text, plot, isStale) => {
        const found = drawn.get(place);
        if (!found || isStale || found.text !== text) {
            found?.plot.destroy();
            place.replaceChildren();
            drawn.set(place, { plot: plot(place, text), text, isChart: plot === plotChart });
        }
    };

    const drawAll = (isStale = false) => {
        for (const [place, { plot }] of drawn) {
            if (!place.isConnected) {
                plot.destroy();
                drawn.delete(place);
            }
        }
        for (const place of content.querySelectorAll(".fq-charts .fq-plot")) {
            draw(place, place.closest(".fq-charts").dataset.charts, plotChart, isStale);
        }
        for (const place of content.querySelectorAll(".fq-spark .fq-plot")) {
            draw(place, place.parentElement.dataset.spark, plotSpark, isStale);
        }
    };

    drawAll();
    const changes = { childList: true, subtree: true, attributeFilter: ["data-charts", "data-spark"] };
    new MutationObserver(() => drawAll()).observe(content, changes);
    new MutationObserver(() => drawAll(true)).observe(document.documentElement, { attributeFilter: ["data-theme", "class"] });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
    window.addEventListener("resize", () => {
        for (const [place, { plot, isChart }] of drawn) {
            if (isChart) {
                plot.setSize({ width: place.clientWidth, height: HEIGHT });
            }
        }
    });
})();

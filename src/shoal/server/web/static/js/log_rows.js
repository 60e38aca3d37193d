// A line of a log as a row: its time, who wrote it, and its text in its colours.
import { render } from "./ansi.js";
import { clock } from "./times.js";

export function logRow(line) {
  const row = document.createElement("div"),
    time = document.createElement("time"),
    who = document.createElement("span"),
    text = document.createElement("span");
  row.className = `ln ${line.stream === "out" ? "" : line.stream}`;
  const moment = new Date(line.at * 1000);
  time.dateTime = moment.toISOString();
  time.title = clock(moment.getTime());
  time.textContent = time.title.slice(11, 19);
  who.className = "who";
  who.textContent = line.rank === null ? "shoal" : `rank ${line.rank}`;
  who.title = `attempt ${line.attempt}, node ${line.node}`;
  text.className = "tx";
  text.append(render(line.text));
  row.append(time, who, text);
  return row;
}

// Searches a whole log for a regular expression, in a thread that the page can end: an expression may take for ever, and does so here
// and not on the server. Sends {hits: [place, …], read}, and at last {done}.
const MOST_HITS = 500,
  TELL_EVERY = 20000;

onmessage = async ({ data: { address, pattern } }) => {
  const wanted = new RegExp(pattern, "i"),
    reader = (await fetch(address)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "",
    read = 0,
    found = 0,
    hits = [];
  const tell = () => {
    postMessage({ hits, read });
    hits = [];
  };
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop();
    for (const line of lines) {
      if (!line) continue;
      const space = line.indexOf(" ");
      if (wanted.test(line.slice(space + 1))) {
        hits.push([Number(line.slice(0, space)), line.slice(space + 1)]);
        found++;
      }
      if (++read % TELL_EVERY === 0) tell();
      if (found >= MOST_HITS) break;
    }
    if (done || found >= MOST_HITS) break;
  }
  tell();
  postMessage({ done: true, more: found >= MOST_HITS });
  reader.cancel();
};

// SPDX-License-Identifier: Apache-2.0
// A job, live: its events as a stream. After a break it goes on from the last event; at the end the page is loaded anew.
const list = document.getElementById("stages");
const state = document.getElementById("job-state");
const ENDED = ["done", "failed", "cancelled"];
let last = Number(list.dataset.last);

function show(name, done, total) {
  let isBefore = true;
  for (const row of list.children) {
    const bar = row.querySelector("progress");
    const words = row.querySelector("output");
    if (row.dataset.stage === name) {
      isBefore = false;
      bar.max = Math.max(total, 1);
      bar.value = done;
      words.textContent = total ? (done >= total ? "done" : `${done} of ${total}`) : "at work";
    } else if (isBefore) {
      bar.value = bar.max;
      words.textContent = "done";
    }
  }
}

function take(kind, facts) {
  if (ENDED.includes(kind)) {
    location.reload();
    return;
  }
  if (kind === "started") {
    const word = document.querySelector("h1 .word");
    word.className = "word running";
    word.textContent = "running";
  }
  if (kind === "stage") {
    show(facts.stage, 0, facts.total);
    state.textContent = list.querySelector(`[data-stage="${facts.stage}"] label`)?.textContent ?? "";
  }
  if (kind === "progress") show(facts.stage, facts.done, facts.total);
}

function read(block) {
  const event = { kind: "message", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) last = Number(line.slice(4));
    if (line.startsWith("event: ")) event.kind = line.slice(7);
    if (line.startsWith("data: ")) event.data += line.slice(6);
  }
  if (event.data) take(event.kind, JSON.parse(event.data));
}

async function follow() {
  const response = await fetch(list.dataset.events, { headers: { "Last-Event-ID": String(last) }, cache: "no-store" });
  if (response.status === 401 || response.status === 404) location.reload();
  if (!response.ok) throw new Error(String(response.status));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    blocks.forEach(read);
  }
}

for (let pause = 500; ; pause = Math.min(2 * pause, 15000)) {
  const before = last;
  try {
    await follow();
  } catch {
    // the server may start anew: try again
  }
  if (last !== before) pause = 500;
  await new Promise((resolve) => setTimeout(resolve, pause));
}

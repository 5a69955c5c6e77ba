// SPDX-License-Identifier: Apache-2.0
// A page polls the driver by short requests: a browser has six connections to a host for all of its tabs, so a tab must not
// keep one open.
"use strict";

// A proxy may serve the dashboard under a prefix, so all addresses are relative to this one.
const ROOT = document.documentElement.dataset.root;
const link = document.getElementById("link");
const banner = document.getElementById("silence");

// Polling intervals (milliseconds): in view, in a hidden tab, and for an ended query.
const ASK_EVERY = 1000, HIDDEN_EVERY = 15000, ENDED_EVERY = 10000;
// Milliseconds without an answer until the page is outdated, and until a request is aborted.
const PATIENCE = 10000, LONGEST = 30000;
// The driver of a query that runs elsewhere writes once a minute into the checkpoint. Older data is outdated.
const WRITTEN_EVERY = 150000;

const escaped = encodeURIComponent;

async function ask(path) {
  let answer;
  try {
    answer = await fetch(ROOT + path, { signal: AbortSignal.timeout(LONGEST) });
  } catch {
    throw new Error("The driver does not answer: it has ended, or cannot be reached.");
  }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `The driver answers with status ${answer.status}.`);
  return answer.json();
}

// Polls the data of a page.
//   path: returns the path of the request.
//   take: handles an answer; returns the pause until the next request (milliseconds), and when the data was written if it
//     is not the driver's live data.
//   quiet: is called when the page becomes outdated, with a text for the title, and with null when it is current again.
function follow(path, take, quiet) {
  let timer = null, isAsking = false, title = null;
  // Time of the driver's last answer, time of the first request after it, and the error of that request.
  let heard = Date.now(), written = null, asked = null, why = "";

  async function turn() {
    clearTimeout(timer);
    if (isAsking) return;
    isAsking = true;
    asked ??= Date.now();
    let pause = ASK_EVERY;
    try {
      const answer = await ask(path()).catch((error) => { why = error.message; return null; });
      if (answer !== null) {
        heard = Date.now();
        asked = null;
        ({ pause, written } = take(answer));
      } else {
        link.textContent = "not connected";
        link.className = "bad";
      }
    } finally {
      isAsking = false;
      timer = setTimeout(turn, document.hidden ? Math.max(pause, HIDDEN_EVERY) : pause);
      look();
    }
  }

  function look() {
    const now = Date.now();
    const isLost = asked !== null && now - asked > PATIENCE;
    const of = written === null ? heard : Math.min(heard, written);
    const isOld = isLost || (written !== null && now - of > WRITTEN_EVERY);
    banner.hidden = !isOld;
    document.body.classList.toggle("quiet", isOld);
    const words = isOld ? `Driver silent for ${span(now - of)}` : null;
    const text = isOld ? `${words}; the data below is from ${clock(of, now)}.${isLost ? ` ${why}` : ""}` : "";
    if (banner.textContent !== text) banner.textContent = text;
    if (words !== title) { title = words; quiet(words); }
  }

  // A hidden tab rarely polls, so it polls as soon as it is in view.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) turn(); });
  setInterval(look, 1000);
  turn();
}

function span(ms) {
  // Coarse, because a screen reader reads each change aloud.
  if (ms < 60000) return "less than a minute";
  return ms < 7200000 ? `${Math.floor(ms / 60000)} min` : `${Math.floor(ms / 3600000)} hours`;
}

// The time of day, with the date if it is not today.
function clock(at, now) {
  const day = (ms) => Math.floor(ms / 86400000);
  return day(at) === day(now) ? `${time(at).slice(11, 16)}Z` : `${time(at).slice(0, 16)}Z`;
}

// Client of the node's API: requests and the event stream, same origin only.

const SECONDS_MAX = 10;

let asked = sessionStorage.getItem("node") ?? "";

export const node = () => asked;

export function choose(name) {
  asked = name;
  sessionStorage.setItem("node", name);
}

export class Missing extends Error {}

function address(path, parameters) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...parameters, node: asked })) {
    if (value !== "" && value !== undefined && value !== null) query.set(name, value);
  }
  const text = query.toString();
  return `api/v1/${path}${text ? `?${text}` : ""}`;
}

export async function get(path, parameters = {}, signal = undefined) {
  const deadline = AbortSignal.timeout(1000 * SECONDS_MAX);
  const answer = await fetch(address(path, parameters), {
    signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
  });
  const value = await answer.json().catch(() => ({}));
  if (answer.status === 404) throw new Missing(value.error ?? "not found");
  if (!answer.ok) throw new Error(value.error ?? `the node responded with status ${answer.status}`);
  return value;
}

// Event stream that reconnects: the browser after a lost connection, this class after an error status.
export class Stream {
  constructor(heard) {
    this.heard = heard;
    this.pause = 1000;
    this.open();
  }

  open() {
    const source = new EventSource(address("stream", {}));
    this.source = source;
    source.addEventListener("open", () => { this.pause = 1000; });
    for (const kind of ["hello", "look", "happened"]) {
      source.addEventListener(kind, (event) => this.heard(kind, JSON.parse(event.data)));
    }
    source.addEventListener("error", () => {
      this.heard("lost", null);
      if (source.readyState !== EventSource.CLOSED) return;
      this.timer = setTimeout(() => this.open(), this.pause);
      this.pause = Math.min(2 * this.pause, 15000);
    });
  }

  close() {
    clearTimeout(this.timer);
    this.source.close();
  }
}

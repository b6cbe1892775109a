// Browsers give no worker to a page that is opened as a file, and the search runs in one. Here a hidden frame of the page does its
// work, on the page's own thread: it runs the worker's script, and messages go to and fro as events.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>worker</title>";
      frame.addEventListener("load", () => this.start(frame, new URL(url, document.baseURI).href), { once: true });
      document.documentElement.append(frame);
    }

    start(frame, url) {
      const inside = frame.contentWindow;
      const load = (source) =>
        new Promise((done, failed) => {
          const script = frame.contentDocument.createElement("script");
          script.src = source;
          script.onload = done;
          script.onerror = failed;
          frame.contentDocument.head.append(script);
        });
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (typeof this.onmessage === "function") this.onmessage(event);
      };
      load(url).then(() => {
        this.inside = inside;
        for (const data of this.waiting.splice(0)) this.postMessage(data);
      });
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}

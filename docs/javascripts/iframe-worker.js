// Browsers start no worker for a page that was opened from disk. There the search runs in a hidden frame instead, which
// answers to the same three names: postMessage, the event "message", terminate.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.ready = new Promise((done, failed) => {
        this.frame.onload = () => {
          const inside = this.frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = new URL(address, document.baseURI)
          script.onload = () => done(inside)
          script.onerror = () => failed(new Error(`${address} cannot be loaded`))
          inside.document.body.append(script)
        }
      })
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}

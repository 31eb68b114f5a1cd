// A browser starts no worker for a page that is read from a disk. Search asks for one: here the same script runs in a hidden
// frame of the page instead, with the same two ways of sending messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.tell(data)
      this.inside.importScripts = (...addresses) => {
        for (const one of addresses) this.inside.document.write(`<script src="${one}"><\/script>`)
      }
      const script = this.inside.document.createElement("script")
      script.src = address
      script.onload = () => {
        this.ready = true
        for (const data of this.waiting.splice(0)) this.postMessage(data)
      }
      this.inside.document.body.appendChild(script)
    }

    tell(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {
      this.inside.frameElement.remove()
    }
  }
}

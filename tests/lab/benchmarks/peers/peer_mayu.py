from counting import URL, count, send, stamp
from mayu import App

app = App(broker=URL)


@app.task(name="noop")
def noop(payload):
    count(payload)


@app.task(name="stamped")
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    import peer_mayu

    send(peer_mayu.noop.delay, peer_mayu.stamped.delay)

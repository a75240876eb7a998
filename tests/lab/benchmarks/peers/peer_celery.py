from celery import Celery
from counting import URGENT, URL, count, send, stamp

app = Celery("peer_celery", broker=URL.replace("unix://", "redis+socket://"))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=16, broker_connection_retry_on_startup=True)
if URGENT:  # Celery's page on routing recommends this for Redis; 0 is the highest priority
    app.conf.update(task_default_priority=9, broker_transport_options={"queue_order_strategy": "priority"})


@app.task(name="noop")
def noop(payload):
    count(payload)


@app.task(name="stamped")
def stamped(sent):
    stamp(sent)


if __name__ == "__main__":
    send(noop.delay, stamped.delay, lambda payload: noop.apply_async((payload,), priority=0))

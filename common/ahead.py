"""Making the next thing on a thread while the last one is in use."""
import concurrent.futures

_END = object()


def ahead(items):
    """Yield the items of an iterable, each of which is made while its predecessor is in use; errors come in order."""
    items = iter(items)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, items, _END)
        while True:
            item = waiting.result()
            if item is _END:
                return
            waiting = pool.submit(next, items, _END)
            yield item

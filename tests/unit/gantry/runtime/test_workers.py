"""Workers: jobs run in submission order, and other jobs run between the slices of a long one."""

import pytest

from gantry.runtime.workers import InlineWorker, submit_slices
from tests.support.waitingworker import WaitingWorker


def slices(done, count):
    for number in range(count):
        done.append(number)
        yield


def test_an_inline_worker_runs_a_job_after_the_one_that_submitted_it():
    worker, order = InlineWorker(), []

    def outer():
        inner = worker.submit(lambda: order.append("inner"))
        assert not inner.done()
        order.append("outer")

    assert worker.submit(outer).done()
    assert order == ["outer", "inner"]
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 // 0).result()
    assert worker.submit(lambda: 7).result() == 7


def test_other_jobs_run_between_slices():
    worker, done = WaitingWorker(), []
    future = submit_slices(worker, slices(done, 3), lambda: True)
    worker.submit(lambda: done.append("other"))
    worker.run()
    assert done == [0, "other"]
    assert worker.run_all() == 3
    assert (done, future.result()) == ([0, "other", 1, 2], True)


def test_a_slice_that_fails_ends_the_job():
    def failing():
        yield
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        submit_slices(InlineWorker(), failing(), lambda: True).result()


def test_a_long_job_stops_once_it_is_no_longer_wanted():
    worker, done = WaitingWorker(), []
    future = submit_slices(worker, slices(done, 5), lambda: len(done) < 2)
    worker.run_all()
    assert (done, future.result()) == ([0, 1], False)


def test_a_long_job_can_not_be_cancelled():
    assert not submit_slices(WaitingWorker(), slices([], 1), lambda: True).cancel()


def test_a_long_job_ends_if_its_worker_is_closed():
    class Closed(WaitingWorker):
        def submit(self, job):
            if done:
                raise RuntimeError("cannot schedule new futures after shutdown")
            return super().submit(job)

    worker, done = Closed(), []
    future = submit_slices(worker, slices(done, 3), lambda: True)
    worker.run()
    assert (done, future.result()) == ([0], False)

"""Virtual loop: it keeps asyncio's contracts without the passing of time."""

import asyncio
import threading

import pytest

from simulations.runtime.loop import DeadlockError, UnsimulatedError, VirtualLoop, run_virtual


def test_a_long_sleep_costs_nothing():
    async def scenario():
        before = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - before

    assert run_virtual(scenario()) == pytest.approx(86_400)


def test_timers_of_one_moment_run_in_the_order_they_were_set():
    async def scenario():
        order = []
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(7.0, order.append, number)
        loop.call_at(6.0, order.append, -1)
        await asyncio.sleep(8)
        return order

    assert run_virtual(scenario()) == [-1, *range(100)]


def test_what_is_ready_runs_before_the_clock_moves():
    async def scenario():
        order = []
        loop = asyncio.get_running_loop()
        loop.call_later(0.0, order.append, "timer")
        loop.call_soon(order.append, "soon")
        loop.call_soon(lambda: loop.call_soon(order.append, "later"))
        await asyncio.sleep(1)
        return order

    assert run_virtual(scenario()) == ["soon", "later", "timer"]


def test_tick_calls_run_in_order_within_a_millisecond_of_their_time():
    async def scenario():
        seen = []
        loop = asyncio.get_running_loop()
        for number, when in enumerate((0.5, 0.1, 0.5, 0.3)):
            loop.call_about(when, lambda item: seen.append((item, loop.time())), (number, when))
        loop.call_at(0.4, seen.append, "timer")
        await asyncio.sleep(1)
        return seen

    seen = run_virtual(scenario())
    assert [item if item == "timer" else item[0][0] for item in seen] == [1, 3, "timer", 0, 2]
    late = [at - when for (_, when), at in (item for item in seen if item != "timer")]
    assert all(0 <= seconds < 0.0011 for seconds in late)


def test_timeouts_end_what_takes_too_long():
    async def scenario():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        return asyncio.get_running_loop().time()

    assert run_virtual(scenario()) == pytest.approx(5)


def test_many_cancelled_timers_are_swept():
    async def scenario():
        loop = asyncio.get_running_loop()
        for _ in range(20_000):
            async with asyncio.timeout(1000):
                await asyncio.sleep(0)
        return len(loop._timers)

    assert run_virtual(scenario()) < 10_000


def test_a_cancelled_timer_does_not_run():
    async def scenario():
        ran = []
        loop = asyncio.get_running_loop()
        timer = loop.call_later(1, ran.append, "no")
        timer.cancel()
        timer.cancel()
        assert timer.cancelled()
        await asyncio.sleep(2)
        return ran

    assert run_virtual(scenario()) == []


def test_a_deadlock_is_an_error():
    async def scenario():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtual(scenario())


def test_the_first_error_is_the_one_that_is_raised():
    async def stubborn():
        while True:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                await asyncio.get_running_loop().create_future()

    async def scenario():
        asyncio.get_running_loop().create_task(stubborn())
        await asyncio.sleep(1)
        raise LookupError("the cause")

    with pytest.raises(LookupError, match="the cause"):
        run_virtual(scenario())


@pytest.mark.parametrize(
    "reach",
    [
        lambda loop: asyncio.to_thread(print),
        lambda loop: asyncio.open_connection("localhost", 80),
        lambda loop: asyncio.create_subprocess_exec("true"),
        lambda loop: loop.getaddrinfo("localhost", 80),
    ],
)
def test_simulated_code_cannot_leave_the_simulation(reach):
    async def scenario():
        await reach(asyncio.get_running_loop())

    with pytest.raises(UnsimulatedError, match="only ports are allowed"):
        run_virtual(scenario())


def test_another_thread_cannot_reach_in():
    async def scenario():
        loop, errors = asyncio.get_running_loop(), []

        def reach_in():
            try:
                loop.call_soon_threadsafe(print)
            except UnsimulatedError as error:
                errors.append(error)

        thread = threading.Thread(target=reach_in)
        thread.start()
        thread.join()
        return errors

    assert len(run_virtual(scenario())) == 1


def test_an_error_in_a_callback_goes_to_the_handler_and_the_loop_goes_on():
    async def scenario():
        loop, seen = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
        loop.call_soon(lambda: 1 / 0)
        loop.call_about(0.5, {}.pop, "missing")
        await asyncio.sleep(1)
        return [type(error) for error in seen]

    assert run_virtual(scenario()) == [ZeroDivisionError, KeyError]


def test_forgotten_generators_are_closed():
    async def scenario():
        closed = []

        async def numbers():
            try:
                yield 1
                yield 2
            finally:
                closed.append(True)

        async for _ in numbers():
            break
        await asyncio.sleep(0.01)
        return closed

    assert run_virtual(scenario()) == [True]


def test_a_loop_begins_at_zero():
    loop = VirtualLoop()
    assert loop.time() == 0.0
    loop.close()

"""Laws of scaling: within its limits, in bounded steps, and never sooner than it may."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from segue.tasks.autoscaler import DECISIONS_KEPT, Autoscaler, Decision, Sample, ScalingRules

SECOND = 1_000_000


@dataclass(frozen=True)
class Moment:
    """What a check finds, apart from the workers that decisions have made."""

    pause_us: int
    depth: int
    busy_share: float
    idle_us: int


@st.composite
def rules(draw: st.DrawFn) -> ScalingRules:
    """Any rules for up to fifty workers."""
    most = draw(st.integers(min_value=1, max_value=50))
    return ScalingRules(
        min_workers=draw(st.integers(min_value=0, max_value=most)),
        max_workers=most,
        depth_up=draw(st.integers(min_value=0, max_value=200)),
        depth_per_worker_up=draw(st.integers(min_value=0, max_value=20)),
        step_depth=draw(st.integers(min_value=1, max_value=100)),
        idle_seconds=draw(st.integers(min_value=0, max_value=200)),
        cooldown_up_seconds=draw(st.integers(min_value=0, max_value=60)),
        cooldown_down_seconds=draw(st.integers(min_value=0, max_value=60)),
        step_up_fraction=draw(st.floats(min_value=0, max_value=1)),
        step_down_fraction=draw(st.floats(min_value=0, max_value=1)),
    )


MOMENTS = st.lists(
    st.builds(
        Moment,
        pause_us=st.integers(min_value=0, max_value=40 * SECOND),
        depth=st.one_of(st.just(0), st.integers(min_value=0, max_value=2_000)),
        busy_share=st.one_of(st.sampled_from([0.0, 1.0]), st.floats(min_value=0, max_value=1)),
        idle_us=st.integers(min_value=0, max_value=400 * SECOND),
    ),
    max_size=60,
)


def run(scaler: Autoscaler, moments: list[Moment], workers: int) -> list[tuple[Sample, Decision]]:
    """Let the autoscaler have its way with the number of workers."""
    story = []
    ticks_us = 0
    for moment in moments:
        ticks_us += moment.pause_us
        busy = round(workers * moment.busy_share)
        sample = Sample(
            ticks_us=ticks_us,
            depth=moment.depth,
            workers=workers,
            busy=busy,
            idle_us=[moment.idle_us] * (workers - busy),
        )
        decision = scaler.decide(sample)
        story.append((sample, decision))
        workers = decision.workers_after
    return story


@given(rules(), MOMENTS, st.integers(min_value=0, max_value=100))
def test_there_are_never_fewer_or_more_workers_than_there_may_be(
    chosen: ScalingRules, moments: list[Moment], workers: int
) -> None:
    """Whatever there was before."""
    for _, decision in run(Autoscaler(chosen), moments, workers):
        assert chosen.min_workers <= decision.workers_after <= chosen.max_workers


@given(rules(), MOMENTS)
def test_steps_are_bounded(chosen: ScalingRules, moments: list[Moment]) -> None:
    """Up by a share of the workers and one, down by a share or one, and never by one who works."""
    for sample, decision in run(Autoscaler(chosen), moments, chosen.min_workers):
        step = decision.workers_after - sample.workers

        assert step <= sample.workers * chosen.step_up_fraction + 1
        assert -step <= max(1, sample.workers * chosen.step_down_fraction)
        assert -step <= sample.workers - sample.busy


@given(rules(), MOMENTS)
def test_cool_downs_are_held(chosen: ScalingRules, moments: list[Moment]) -> None:
    """Between two steps up, and between any step and one down."""
    up_us = changed_us = -(10**12)
    for _, decision in run(Autoscaler(chosen), moments, chosen.min_workers):
        step = decision.workers_after - decision.workers_before
        if step > 0:
            assert decision.ticks_us - up_us >= chosen.cooldown_up_seconds * SECOND
            up_us = changed_us = decision.ticks_us
        if step < 0:
            assert decision.ticks_us - changed_us >= chosen.cooldown_down_seconds * SECOND
            changed_us = decision.ticks_us


@given(rules(), MOMENTS)
def test_workers_are_added_only_for_tasks_and_go_only_when_idle(
    chosen: ScalingRules, moments: list[Moment]
) -> None:
    """No step without its cause."""
    for sample, decision in run(Autoscaler(chosen), moments, chosen.min_workers):
        if decision.workers_after > sample.workers:
            assert sample.depth > 0
        if decision.workers_after < sample.workers:
            assert max(sample.idle_us) >= chosen.idle_seconds * SECOND


@given(rules(), MOMENTS)
def test_each_change_is_kept_and_each_reason_said(
    chosen: ScalingRules, moments: list[Moment]
) -> None:
    """What changed is in the decisions, what did not is the standing reason."""
    scaler = Autoscaler(chosen)
    story = run(scaler, moments, chosen.min_workers)
    changes = [decision for _, decision in story if decision.is_change]
    stays = [decision.reason for _, decision in story if not decision.is_change]

    assert scaler.decisions == tuple(changes[-DECISIONS_KEPT:])
    assert scaler.standing == (stays[-1] if stays else "")
    assert all(decision.reason for _, decision in story)

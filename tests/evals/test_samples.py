"""Samples on disk, also after the end of a process in the middle of a line."""

from da3po_cli.evals.samples import SampleStore


def record(uid, sample, bench="toy"):
    return {"bench": bench, "uid": uid, "sample": sample, "response": "zwölf\n\u2028"}


def test_what_is_written_is_read_again_from_all_ranks(tmp_path):
    store = SampleStore(tmp_path)
    for rank in (0, 1):
        writer = store.writer(rank)
        writer.append([record(f"p{rank}", 0), record(f"p{rank}", 1)])
        writer.close()
    assert store.done() == {("toy", f"p{rank}", sample) for rank in (0, 1) for sample in (0, 1)}
    assert all(one["response"] == "zwölf\n\u2028" for one in store.records())


def test_half_a_line_is_no_sample_and_does_not_spoil_the_next(tmp_path):
    store = SampleStore(tmp_path)
    writer = store.writer(0)
    writer.append([record("a", 0), record("b", 0)])
    writer.close()
    file = tmp_path / "partial" / "rank_0.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    assert store.done() == {("toy", "a", 0)}
    writer = store.writer(0)
    writer.append([record("c", 0)])
    writer.close()
    assert store.done() == {("toy", "a", 0), ("toy", "c", 0)}


def test_merge_and_clear(tmp_path):
    store = SampleStore(tmp_path)
    writer = store.writer(3)
    writer.append([record("b", 0), record("a", 0)])
    writer.close()
    store.merge(sorted(store.records(), key=lambda one: one["uid"]))
    assert [one["uid"] for one in store.records()] == ["a", "b"]
    assert not (tmp_path / "partial").exists()
    store.clear()
    assert store.done() == set()


def test_samples_of_prompts_with_one_uid_in_two_benchmarks_are_different_ones(tmp_path):
    """`arith` has the uids of a run's validation, and so has a data file called validation.jsonl."""
    store = SampleStore(tmp_path)
    writer = store.writer(0)
    writer.append([record("validation-0", 0, bench="arith")])
    writer.close()
    assert ("validation", "validation-0", 0) not in store.done()
    assert store.done() == {("arith", "validation-0", 0)}

"""check-nodes in its pods: real ranks over gloo."""

from __future__ import annotations

from eks_fsdp.launcher.nodecheck.pods import check_rows

from .conftest import RankServer, free_port


def test_ranks_measure_their_all_reduces(ranks: RankServer) -> None:
    done = ranks.run(2, environment={"CHECK_NODES": "reduce --backend gloo --mib 0.1 1"}).succeeded()
    rows = check_rows(done.out)
    assert [row["ranks"] for row in rows] == [2, 2]
    assert [row["bytes"] for row in rows] == [104_856, 1_048_576]
    assert all(row["gb_per_second"] > 0 and row["transport"] == "gloo" for row in rows)
    assert not check_rows((ranks.output / "out.1").read_text()), "rank 0 alone prints"


def test_one_rank_alone_has_no_bandwidth(ranks: RankServer) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = ranks.run(1, environment={"CHECK_NODES": "reduce --backend gloo --mib 0.1", **alone}).succeeded()
    (row,) = check_rows(done.out)
    assert row["gb_per_second"] is None

from shoal.data.formats import Block
from shoal.data.index import Counted, Index

BLOCKS = [Block("a", n, n + 1) for n in range(4)]


def test_what_one_process_learns_another_finds(tmp_path):
    mine, theirs = Index(BLOCKS, tmp_path / "deep" / "log"), Index(BLOCKS, tmp_path / "deep" / "log")
    mine.learn(2, Counted(130, (0, 400, 900)))
    assert theirs.get(2) is None
    theirs.refresh()
    assert theirs.get(2) == Counted(130, (0, 400, 900))
    theirs.learn(0, Counted(5))
    mine.refresh()
    assert mine.get(0) == Counted(5)


def test_counts_that_need_no_reading_are_known_at_once(tmp_path):
    assert Index([Block("a", 0, 1, 7)], tmp_path / "log").get(0) == Counted(7)


def test_a_torn_or_foreign_line_is_passed_over(tmp_path):
    path = tmp_path / "log"
    Index(BLOCKS, path).learn(1, Counted(9))
    whole = path.read_bytes()
    path.write_bytes(b"0 99 0000" + whole + b"garbage\n" + whole.replace(b"9", b"8", 1) + b"7 1 ")
    index = Index(BLOCKS, path)
    assert [index.get(n) for n in range(4)] == [None] * 4
    index.learn(1, Counted(9))
    path.write_bytes(whole + whole[:-3])
    assert Index(BLOCKS, path).get(1) == Counted(9)


def test_a_number_beyond_the_blocks_is_passed_over(tmp_path):
    Index([Block("a", n, n) for n in range(9)], tmp_path / "log").learn(8, Counted(1))
    assert Index(BLOCKS, tmp_path / "log").get(8) is None


def test_where_nothing_can_be_written_it_is_still_known_here(tmp_path):
    (tmp_path / "file").write_text("")
    index = Index(BLOCKS, tmp_path / "file" / "log")
    index.learn(1, Counted(9))
    assert index.get(1) == Counted(9)

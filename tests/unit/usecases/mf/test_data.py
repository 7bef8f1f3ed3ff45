"""Files of ratings: every format gives the same ratings; unusable files are refused in one sentence."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from adabench.usecases.interface import DataError
from adabench.usecases.mf import data
from adabench.usecases.mf.data import FOLDS, load, split
from adabench.usecases.mf.generate import generate

ROWS = [("u1", "i1", 4.0), ("u2", "i1", 3.5), ("u1", "i7", 1.0), ("u3", "i7", 5.0)]


def written(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def lines(separator: str, header: str = "", time: bool = True) -> str:
    rows = [separator.join([user, item, str(rating), *["881250949"] * time]) for user, item, rating in ROWS]
    return "\n".join([*[header] * bool(header), *rows, ""])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("u.data", lines("\t")),
        ("ratings.dat", lines("::")),
        ("ratings.csv", lines(",", "userId,movieId,rating,timestamp")),
        ("ratings.csv.gz", lines(",", "userId,movieId,rating,timestamp")),
        ("own.csv", lines(",", time=False)),
        ("ml.inter", lines("\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float")),
        ("turned.csv", "rating,item,user\n4,i1,u1\n3.5,i1,u2\n1,i7,u1\n5,i7,u3\n"),
        ("quoted.csv", '"user","item","rating"\n"u1","i1",4\n"u2","i1",3.5\n"u1","i7",1\n"u3","i7",5\n'),
        ("windows.csv", lines(",").replace("\n", "\r\n")),
        ("excel.csv", lines(";", "User;Item;Rating;Time")),
        ("bars", lines("|")),
        ("spaces", lines(" ")),
        ("blank", lines(",") + "\n\n"),
        ("mark", "\ufeff" + lines(",", "userId,movieId,rating,timestamp")),
        ("titles.csv", lines(",").replace("881250949", '"a :: b, c"')),
        ("tabs.csv", lines(",").replace("881250949", "a\tb")),
        ("colons.dat", lines("::").replace("881250949", "a: b")),
        ("names.csv", '"a, b",User,item,rating\n' + lines(",", time=False).replace("u", "0,u")),
        ("first.csv", lines(",").replace("u1,i1,4.0,881250949", 'u1,i1,4.0,"Smith, John"')),
        ("big.csv", lines(",").replace("u1", "-9223372036854775808").replace("i7", "9223372036854775807")),
    ],
)
def test_all_formats_give_the_same_ratings(tmp_path: Path, name: str, text: str) -> None:
    ratings = load(written(tmp_path / name, text), 0)
    assert ratings.block.users.tolist() == [0, 1, 0, 2]
    assert ratings.block.items.tolist() == [0, 0, 1, 1]
    assert ratings.block.ratings.tolist() == [4, 3.5, 1, 5]
    assert (ratings.users, ratings.items) == (3, 2)
    assert ratings.fingerprint == load(written(tmp_path / "same.data", lines("\t")), 0).fingerprint


def test_a_folder_is_searched_for_one_known_file(tmp_path: Path) -> None:
    written(tmp_path / "u.data", lines("\t"))
    assert len(load(tmp_path, 0).block.ratings) == 4
    written(tmp_path / "ratings.dat", lines("::"))
    with pytest.raises(DataError, match=r"has ratings.dat and u.data: it must have one of"):
        load(tmp_path, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the first line, '', has one column"),
        ("u1\n", "has one column: it must be a file of ratings"),
        ("u1,4\n", "has 2 columns"),
        ("user,item,mark\nu,i,3\n", "names 0 columns of ratings: it must name one, for instance 'rating'"),
        ("user,item,rating\n", "has no ratings"),
        *(
            (f"u1,i1,4\nu2,i1,{text}\n", f"line 2: '{text}' must be a rating, a number between -1e6 and 1e6")
            for text in ("many", "nan", "1e400", "1_0", "\u0663")
        ),
        ("u1,i1,4\nu2,i1\n", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        load(written(tmp_path / "bad.csv", text), 0)
    assert len(str(caught.value).splitlines()) == 1


def test_a_cut_off_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv.gz"
    path.write_bytes(gzip.compress(lines(",").encode() * 1000)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        load(path, 0)


def test_files_are_read_once_and_anew_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "u.data", lines("\t"))
    first = load(path, 0)
    with monkeypatch.context() as patch:
        patch.setattr(data, "rating_blocks", lambda file: pytest.fail("read again"))
        assert load(path, 0).fingerprint == first.fingerprint
    written(path, lines("\t") * 2)
    assert len(load(path, 0).block.ratings) == 8


def test_the_folds_test_every_rating_once() -> None:
    count = 1000
    splits = [split(count, fold) for fold in range(FOLDS)]
    assert sorted(np.concatenate([one.test for one in splits])) == list(range(count))
    for one in splits:
        assert sorted(np.concatenate(one)) == list(range(count))
        assert 150 < len(one.test) < 250
        assert 20 < len(one.valid) < 60


def test_generated_ratings_are_skewed_and_repeat_no_pair() -> None:
    block = generate(200_000)
    again = generate(200_000)
    assert all(np.array_equal(one, other) for one, other in zip(block, again, strict=True))
    pairs = set(zip(block.users.tolist(), block.items.tolist(), strict=True))
    assert len(pairs) == len(block.ratings) > 190_000
    assert {float(rating) for rating in np.unique(block.ratings)} <= {half / 2 for half in range(2, 11)}
    counts = np.sort(np.bincount(block.items))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.3 * counts.sum()
    with pytest.raises(DataError, match="no more than"):
        generate(10**15)

"""Tokenizers: text to token ids and back.

`CharTokenizer` needs no file: one token a character, and a few special tokens. `HfTokenizer` reads a `tokenizer.json` as it
lies beside a Hugging Face checkpoint. Both name the special tokens of a conversation as Qwen3 does, so that one chat format
serves both. Nothing here imports JAX.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from harness.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PAD = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"

UNKNOWN = "\ufffd"

PRINTABLE = "\n" + "".join(chr(code) for code in range(32, 127))
"""Newline and the printable characters of ASCII: the alphabet of a new model."""


class CharTokenizer:
    """One token for each character of an alphabet, after the special tokens.

    Ids: padding 0, end of turn 1, start of turn 2, then `specials`, then the alphabet in its order.

    Args:
        alphabet: the characters, each once.
        specials: further strings that are one token each, such as `<tool_call>`.

    Raises:
        ConfigError: the alphabet is empty or has a character twice; a special token is empty or there twice.

    """

    def __init__(self, alphabet: str = PRINTABLE, specials: Sequence[str] = ()) -> None:
        if not alphabet:
            raise ConfigError("the alphabet is empty", field="alphabet", allowed="at least one character")
        self.alphabet = alphabet
        tokens = (PAD, TURN_END, TURN_START, *specials)
        _check_once("specials", tokens)
        _check_once("alphabet", alphabet)
        self._texts = (*tokens, *alphabet)
        self._special_ids = {text: number for number, text in enumerate(tokens)}
        self._char_ids = {text: number for number, text in enumerate(alphabet, start=len(tokens))}
        longest_first = sorted(tokens, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")
        self.vocab_size = len(self._texts)
        self.pad_id = 0
        self.end_id = 1
        self._silent = {0, 1, 2}

    def encode(self, text: str, *, special: bool = True, source: str = "") -> list[int]:
        """Token ids of a text.

        Args:
            text: what to encode.
            special: whether the names of special tokens in it stand for those tokens. False for text from outside, such as
                a tool's output, which must not be able to end a turn.
            source: where the text came from, for the error.

        Raises:
            DataError: a character is not in the alphabet.

        """
        try:
            if not special:
                return [self._char_ids[character] for character in text]
            ids: list[int] = []
            for number, part in enumerate(self._split.split(text)):
                if number % 2:
                    ids.append(self._special_ids[part])
                else:
                    ids.extend(self._char_ids[character] for character in part)
            return ids
        except KeyError as missing:
            if special:  # they are known, whatever is in their names
                text = self._split.sub(lambda name: self.alphabet[0] * len(name[0]), text)
            raise self._unknown(missing.args[0], text, source) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids.

        Padding, starts and ends of turns are left out. An id beyond the vocabulary is shown as U+FFFD: a model whose embedding
        is larger than the vocabulary can make one.
        """
        texts, silent, size = self._texts, self._silent, self.vocab_size
        return "".join(texts[token] if 0 <= token < size else UNKNOWN for token in ids if token not in silent)

    def _unknown(self, character: str, text: str, source: str) -> DataError:
        at = text.find(character)
        near = text[max(at - 12, 0) : at + 13]
        return DataError(
            f"character {character!r} (U+{ord(character):04X}) at position {at} is not in the alphabet, in {near!r}",
            field=source or "text",
            value=character,
            allowed=f"the {len(self.alphabet)} characters {self.alphabet!r}",
            remedy="keep to these characters, give the tokenizer a larger alphabet, or use a checkpoint with its own tokenizer",
        )


def _check_once(field: str, texts: Sequence[str]) -> None:
    seen: set[str] = set()
    for text in texts:
        if not text or text in seen:
            problem = "stands there twice" if text else "is empty"
            raise ConfigError(f"{text!r} {problem}", field=field, value=text, allowed="each token once, none empty")
        seen.add(text)


class HfTokenizer:
    """A `tokenizer.json`, through the `tokenizers` package.

    End of turn is `<|im_end|>` where the vocabulary has it, else `eos_token` of the `tokenizer_config.json` beside it. Padding
    is its `pad_token`, else `<|endoftext|>`, else the end of turn: padding is masked, so that any id will do.

    Args:
        path: the file, or the folder that holds it.

    Raises:
        DataError: there is no such file, it is not a tokenizer, or it has no token that ends a turn.

    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.file = path / "tokenizer.json" if path.is_dir() else path
        self._with_special = _read(self.file)
        self._plain = _read(self.file)  # a switch on one object would be shared by threads
        self._plain.encode_special_tokens = True
        ids = self._with_special.get_vocab(with_added_tokens=True)
        names = _token_names(self.file.with_name("tokenizer_config.json"))
        end_id = ids.get(TURN_END, ids.get(names.get("eos_token", "")))
        if end_id is None:
            raise DataError(
                "no token ends a turn",
                file=str(self.file),
                field="added_tokens",
                allowed=f"{TURN_END}, or an eos_token in tokenizer_config.json",
                remedy="use the tokenizer of a chat model",
            )
        self.end_id = end_id
        self.pad_id = ids.get(names.get("pad_token", ""), ids.get(PAD, end_id))
        self.vocab_size = max(ids.values()) + 1

    def encode(self, text: str, *, special: bool = True, source: str = "") -> list[int]:
        """Token ids of a text; none is added.

        Args:
            text: what to encode.
            special: whether the names of special tokens in it stand for those tokens. False for text from outside, such as
                a tool's output, which must not be able to end a turn.
            source: where the text came from, for the error.

        Raises:
            DataError: the text is not valid Unicode (a lone surrogate).

        """
        tokenizer = self._with_special if special else self._plain
        try:
            return list(tokenizer.encode(text, add_special_tokens=False).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise DataError(
                f"not valid text: {error}", field=source or "text", allowed="Unicode without lone surrogates"
            ) from None

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; special tokens are left out, and an id beyond the vocabulary is shown as U+FFFD."""
        runs: list[list[int]] = [[]]
        for token in ids:
            if 0 <= token < self.vocab_size:
                runs[-1].append(token)
            else:
                runs.append([])
        return UNKNOWN.join(self._with_special.decode(run, skip_special_tokens=True) for run in runs)


def _read(file: Path) -> Tokenizer:
    if not file.is_file():
        raise DataError(
            "there is no such tokenizer", file=str(file), allowed="a tokenizer.json", remedy="copy it from the checkpoint"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises Exception itself
        raise DataError(f"not a tokenizer: {error}", file=str(file), remedy="copy it again from the checkpoint") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _token_names(file: Path) -> dict[str, str]:
    """`eos_token` and `pad_token`, which are texts in newer files and objects with a `content` in older ones."""
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"not JSON: {error}", file=str(file), remedy="copy it again from the checkpoint") from error
    if not isinstance(data, dict):
        return {}
    names = {}
    for field in ("eos_token", "pad_token"):
        value = data.get(field)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            names[field] = text
    return names


def check_fits(tokenizer: CharTokenizer | HfTokenizer, vocab_size: int, model: str) -> None:
    """Refuse a tokenizer that makes ids for which the model has no embedding.

    Args:
        tokenizer: for the model.
        vocab_size: rows of the model's embedding.
        model: where they come from: a file or a field.

    Raises:
        ConfigError: names both numbers and both files.

    """
    if tokenizer.vocab_size <= vocab_size:
        return
    name = str(tokenizer.file) if isinstance(tokenizer, HfTokenizer) else "the character tokenizer"
    raise ConfigError(
        f"the tokenizer does not fit the model: {name} has {tokenizer.vocab_size} tokens, {model} has {vocab_size}",
        file=model,
        field="vocab_size",
        value=vocab_size,
        allowed=f"at least {tokenizer.vocab_size}",
        remedy="use tokenizer and weights of the same checkpoint",
    )

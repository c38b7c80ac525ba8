"""A search in this process, without farm and log: what it asked, and what it knows."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.space.structures import Structures
from compiler.unit.unit import Unit
from tests.tuning import QUICK
from tuner.config import load_config
from tuner.measure.evaluate import Ask, Evaluator
from tuner.search.context import SearchContext
from tuner.search.epoch import run_epoch
from tuner.search.islands import first_states, unpack_island
from tuner.search.knowledge import Knowledge
from tuner.search.question import Question, Reply
from tuner.search.rules import Rules
from tuner.store.digests import text_digest

LEVELS = ("none", "slight", "severe")


class Local:
    """A `Measure`.  asked: every question, in order."""

    def __init__(self, u: Unit) -> None:
        self.evaluator, self.asked = Evaluator(u, LEVELS), list[Question]()

    def __call__(self, questions: Sequence[Question]) -> list[Reply]:
        self.asked += questions
        return [self.reply(question) for question in questions]

    def reply(self, question: Question) -> Reply:
        answer = self.evaluator.answer(question.ask)
        return Reply(question, answer, text_digest(answer.payload) if question.ask.measure else "")

    def measured(self) -> list[Ask]:
        return [question.ask for question in self.asked if question.ask.measure]


class LocalSearch:
    """All islands, epoch by epoch: every job knows everything of earlier epochs."""

    def __init__(self, u: Unit, *overrides: str, seed: int = 0) -> None:
        config = load_config(None, (*QUICK, *overrides))
        self.rules = Rules(u, LEVELS, config, {})
        self.known = Knowledge(Structures(u), len(LEVELS))
        self.islands = [unpack_island(state) for state in first_states(len(LEVELS), config, seed)]
        self.epoch = 0
        self.contexts: list[SearchContext] = []

    def step(self, measure: Local) -> None:
        """An epoch of every island."""
        contexts = [
            SearchContext(self.rules, self.known, measure, number, self.epoch, [None] * len(LEVELS))
            for number in range(1 if self.epoch == 0 else len(self.islands))
        ]
        for context in contexts:
            with self.known.aside():
                run_epoch(context, self.islands[context.island])
        self.known.learn_epoch([context.findings.pack(context.island, len(LEVELS)) for context in contexts])
        self.contexts += contexts
        self.epoch += 1

    def steps(self, measure: Local, count: int) -> LocalSearch:
        for _ in range(count):
            self.step(measure)
        return self

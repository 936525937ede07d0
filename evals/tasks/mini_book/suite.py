"""Long narratives: loss after a long context, generated or real, and a continuation that must agree with the story."""

from longdecode.evals.tasks.base import Suite
from longdecode.evals.tasks.mini_book.narrative import MiniBookLoss, MiniBookWrite
from longdecode.evals.tasks.mini_book.pg19 import MiniBookPg19

SUITE = Suite(
    {
        "mini_book_loss": lambda data: MiniBookLoss(),
        "mini_book_write": lambda data: MiniBookWrite(),
        "mini_book_pg19": lambda data: MiniBookPg19(data.get("pg19")),
    },
    data=("pg19",),
)

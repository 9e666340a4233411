"""Changes the text of SQL statements of the package."""


def has_statement(name: str) -> bool:
    """Return whether the database has a statement of this name."""
    from django_durable_tasks.store import dialects
    from django_durable_tasks.store.dialects import vendor

    return dialects.text(name, vendor()) is not None


def with_text(name: str, *changes: tuple[str, str]) -> None:
    """Replace words of the statement of this name. Raises LookupError without them.

    On a database without SQL of its own nothing is replaced.
    """
    from django_durable_tasks.store import dialects

    text = dialects.text
    # At the installation: an error in the statement would look as if a test had found the mutant.
    original = text(name, "postgresql") or ""
    for words, _ in changes:
        if words not in original:
            raise LookupError(f"The mutant no longer finds {words!r} in {name}.postgresql.sql.")

    def changed(of: str, database: str) -> str | None:
        found = text(of, database)
        if of == name and found is not None:
            for words, others in changes:
                found = found.replace(words, others)
        return found

    setattr(dialects, "text", changed)  # noqa: B010 - mypy knows it as a function

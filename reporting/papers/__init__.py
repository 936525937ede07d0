"""Pages of papers: what they published beside what was measured here. A paper is a folder; see :mod:`.registry`."""

"""
Remembers. The only place with SQL, and the only one that knows APSW.

Decides: how bytes lie in one SQLite file, and how processes take turns writing it.
Refuses to know: why anything is stored; the engine composes what these modules offer.

``connection.Store`` is one open file. It composes ``writer_lock`` (the order of writers), ``readers``,
``checkpointer``, ``migrate`` (whose file, and of which format) and ``owners`` (which processes live). ``sqlite`` sets a
connection up; ``errors`` says what a driver's error means. The other modules hold one function per query, a group of
tables each.
"""

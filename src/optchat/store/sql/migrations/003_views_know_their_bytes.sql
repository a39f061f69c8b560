-- A view that only grows is advanced by its size alone; without it every process read all lines again after another's commit.
ALTER TABLE view ADD COLUMN bytes INTEGER;

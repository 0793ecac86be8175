"""Sweeps: many runs of trainer.fit on Ray Tune, chosen by a searcher, cut short by a scheduler, kept in a directory.

    sweep directory/  spec.json  events.jsonl (the journal)  graph/  trials/<number>/seed-<seed>/ (run directories)
                      best.json  results.csv  results.json  figures/  log.txt

The journal is the truth (tuner.journal): a sweep that was killed is read from it and goes on. Ray keeps nothing.
"""

"""Data sets of the service: those that clients upload, and those that are there anyway.

form → uploads      a multipart body becomes files on disk while it arrives, in `receive`
checks, npz_checks  what can be refused without reading the data; the rest is the importer's, a job of its own
identity            name, options, and the version that follows from the content
registration              from files on disk to a row in the store and an import job; waiting for what it says
catalog, resolve  what there is, and which version a spec's bare name means
"""

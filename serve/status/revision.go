package status

// Revision is the version of the daemon's answers and of the output of commands with -o json. It
// changes with every field that is added, removed, or changes its type or meaning. It is part of
// the path of every request: a command and a daemon of different revisions report an error instead
// of reading zeros for renamed fields. `sluice version -o json` prints it for scripts.
const Revision = "v20"

const root = "/" + Revision

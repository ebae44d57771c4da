package status

// Revision names the form of what the daemon answers and of what commands print with -o json. It
// changes with every field that comes, goes, or gets another type or meaning. It is in the path of
// every request, so that a command and a daemon of different revisions refuse each other instead of
// reading zeros where a field has another name, and `sluice version -o json` prints it for scripts.
const Revision = "v9"

const root = "/" + Revision

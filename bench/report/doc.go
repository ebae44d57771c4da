// Package report runs the laboratory's experiments and presents their results.
//
//	Experiments ──Run──► bench/out/NAME.json ──Write──► every figure, as Markdown
//	                          │ Adopt
//	                          ▼
//	   bench/baselines/[zen3/]NAME.json ──WriteDocs──► README.md, docs/benchmarks.md, docs/plots
//
// An experiment is a command that saves a results.Run; the report needs nothing else of it. The
// plots follow from the points: a varied condition becomes an x axis. A missed target, a failed
// experiment and an experiment that was not run appear as lines of the report.
//
// Targets bound ratios to a system that ran beside Sluice, and growth: neither depends on the
// processor, as nanoseconds do. The documents have a column for each machine, with one generation
// of runs (OneGeneration): the runs in one folder of baselines.
//
// Go benchmarks are kept beside them as text that benchstat compares (Benchmarks, Compare).
package report

// Package report runs the laboratory's experiments and shows what they found.
//
//	Experiments ──Run──► bench/out/NAME.json ──Write──► every figure, as Markdown
//	                          │ Adopt
//	                          ▼
//	   bench/baselines/[zen3/]NAME.json ──WriteDocs──► README.md, docs/benchmarks.md, docs/plots
//
// An experiment is a command that saves a results.Run; nothing else of it is known here. Which
// plots there are follows from the points: what was varied becomes an x axis. A target that is
// missed, an experiment that failed and one that nobody ran are lines of the report.
//
// Targets bound ratios to a system that ran beside Sluice, and growth: neither belongs to one
// processor, as nanoseconds do. The documents have a column for each machine, which shows one
// generation of runs (OneGeneration): those of a folder of baselines.
//
// Go benchmarks are kept beside them as text that benchstat compares (Benchmarks, Compare).
package report

package pagetest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands fails the test for each command line of a program, in a page or a message of the
// product, with a command or flag that the program does not have. root is the directory of the
// tree, program returns a new root command. fewest is how many command lines there are at least.
func Commands(t *testing.T, root string, program func() *cobra.Command, fewest int) {
	t.Helper()
	name := program().Name()
	found := 0
	check := func(where, text string, all bool) {
		for _, line := range commandLines(name, text) {
			c, err := parse(program(), line.words)
			if err != nil && (all || line.quoted || c.HasParent()) {
				t.Errorf("%s: `%s %s`: %v", where, name, strings.Join(line.words, " "), err)
			}
			if err == nil {
				found++
			}
		}
	}
	for _, page := range pages(t, root) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, code := range codeOf(string(text)) {
			check(page, code, true)
		}
	}
	for _, file := range sources(t, root) {
		for _, text := range messages(t, file) {
			check(file, text, false)
		}
	}
	if found < fewest {
		t.Errorf("only %d command lines of %s were found, and there are %d at least", found, name, fewest)
	}
}

// pages returns the pages that tell what to do: decisions and records of measurements are left out.
func pages(t *testing.T, root string) (list []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*/*.md", "deploy/*/*.yaml", "deploy/systemd/*",
		"deploy/chart/templates/*", "docs/example/*"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return slices.DeleteFunc(list, func(path string) bool {
		name := filepath.Base(path)
		info, err := os.Stat(path)
		return name == "CHANGELOG.md" || strings.HasPrefix(name, "benchmarks") || err != nil || info.IsDir()
	})
}

// sources returns the files of Go code that are no tests.
func sources(t *testing.T, root string) (list []string) {
	t.Helper()
	for _, dir := range []string{"cmd", "control", "internal", "fastpath", "flowtable", "bench"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				list = append(list, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return list
}

var (
	fences = regexp.MustCompile("(?ms)^```.*?^```$")
	spans  = regexp.MustCompile("`[^`\n]+(\n[^`\n]+)?`")
)

// codeOf returns the code of a page. A file that is no Markdown is code as a whole.
func codeOf(text string) (list []string) {
	if !strings.Contains(text, "```") && !strings.HasPrefix(text, "# ") {
		return spans.FindAllString(text, -1)
	}
	for _, f := range fences.FindAllString(text, -1) {
		list = append(list, strings.ReplaceAll(f, "\\\n", " "))
	}
	for _, s := range spans.FindAllString(fences.ReplaceAllString(text, ""), -1) {
		list = append(list, strings.ReplaceAll(s, "\n", " "))
	}
	return list
}

// messages returns the texts of a file; texts joined by + are one.
func messages(t *testing.T, file string) (list []string) {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		e, is := n.(ast.Expr)
		if !is {
			return true
		}
		text, is := joined(e)
		if is {
			list = append(list, text)
		}
		return !is
	})
	return list
}

// joined returns the text of a literal, or of literals and other values that are joined; %s stands
// for the others.
func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, isX := joined(e.X)
		y, isY := joined(e.Y)
		if e.Op != token.ADD || !isX && !isY {
			return "", false
		}
		if !isX {
			x = "%s"
		}
		if !isY {
			y = "%s"
		}
		return x + y, true
	}
	return "", false
}

// commandLine is the text after a program's name. quoted: it is in back quotes, or begins an
// indented line.
type commandLine struct {
	words  []string
	quoted bool
}

// commandLines finds a program's command lines in a text: its name where a command may begin,
// perhaps with a path before it, and words up to where the shell ends a command.
func commandLines(program, text string) (list []commandLine) {
	begin := regexp.MustCompile("(?m)(^|[`\\s(/])" + regexp.QuoteMeta(program) + "((?: +[^\\s`|;&<>#)]+)+)")
	for _, m := range begin.FindAllStringSubmatchIndex(text, -1) {
		line := commandLine{words: strings.Fields(text[m[4]:m[5]])}
		before := text[strings.LastIndexAny(text[:m[3]], "\n")+1 : m[3]]
		before = strings.TrimRight(path.ReplaceAllString(before, ""), "(")
		line.quoted = before != "" && strings.Trim(before, " $") == "" || strings.HasSuffix(before, "`")
		if !line.quoted && !starts.MatchString(before) {
			continue
		}
		for i, w := range line.words {
			line.words[i] = strings.TrimRight(strings.Trim(w, `'"[]`), ",.:")
		}
		list = append(list, line)
	}
	return list
}

var (
	path = regexp.MustCompile(`[\w./-]*/$`)
	// starts matches a text after which a command may begin.
	starts = regexp.MustCompile(`(^|[|;&(=]|\s--|\bsudo|\bexec \S+)\s*$`)
)

// parse returns the command of a line, with an error if there is no such command or flag.
func parse(c *cobra.Command, words []string) (*cobra.Command, error) {
	c.InitDefaultHelpFlag()
	c.InitDefaultHelpCmd()
	c.InitDefaultCompletionCmd(words...)
	c.InitDefaultVersionFlag()
	for i := 0; i < len(words); i++ {
		word := words[i]
		name, _, hasValue := strings.Cut(word, "=")
		switch {
		case name == "--":
			return c, nil
		case strings.HasPrefix(name, "-") && len(name) > 1:
			c.InitDefaultHelpFlag()
			f := flag(c, name)
			if f == nil {
				return c, fmt.Errorf("there is no flag %s", name)
			}
			if f.NoOptDefVal == "" && !hasValue {
				i++
			}
		case placeholder.MatchString(word):
		case c.HasSubCommands():
			switch sub := subcommand(c, word); {
			case sub != nil:
				c = sub
			case c.Args == nil || c.Args(c, []string{word}) != nil: // it is no argument of c either
				return c, fmt.Errorf("there is no command %s", word)
			}
		}
	}
	return c, nil
}

// placeholder stands for any command or argument.
var placeholder = regexp.MustCompile(`^([A-Z_]+|\.\.\.|…|%[a-z])$`)

func flag(c *cobra.Command, name string) *pflag.Flag {
	if short, is := strings.CutPrefix(name, "--"); is {
		return c.Flag(short)
	}
	for at := c; at != nil; at = at.Parent() {
		for _, set := range []*pflag.FlagSet{at.Flags(), at.PersistentFlags()} {
			if f := set.ShorthandLookup(name[1:2]); f != nil {
				return f
			}
		}
	}
	return nil
}

func subcommand(c *cobra.Command, name string) *cobra.Command {
	for _, sub := range c.Commands() {
		if sub.Name() == name || sub.HasAlias(name) {
			return sub
		}
	}
	return nil
}

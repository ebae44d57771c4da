package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inlined are the functions that must cost no call, by package. The compiler decides, and its
// budget is of nodes of syntax: a small change may use it up.
var inlined = map[string][]string{
	"nat":              {"TranslatePlain"},
	"fastpath/nexthop": {"(*Hop).Use"},
	"nat/header":       {"(*Memory).Window4", "(*Memory).Window6"},
	"flowtable":        {"(*Handle).FetchBuckets", "(*Handle).FetchFlows", "(*Handle).Match"},
	"flowtable/conn": {"Meta.State", "Meta.Proto", "Meta.Seen", "Meta.Live", "Meta.At", "Ticks.Since",
		"(*Lifetimes).Expired"},
	"fastpath":       {"(*Worker).boundHop"},
	"fastpath/stats": {"MakeEntry"},
}

// TestInlined reads what the compiler says about each of them.
func TestInlined(t *testing.T) {
	for dir, functions := range inlined {
		build := exec.Command("go", "build", "-gcflags=-m", module+dir)
		out, err := build.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", build.Args, err, out)
		}
		for _, f := range functions {
			if !strings.Contains(string(out), ": can inline "+f+"\n") {
				t.Errorf("%s: the compiler does not inline %s (go build -gcflags=-m=2 %s says why)", dir, f, module+dir)
			}
		}
	}
}

// TestInliningIsTested: who writes of a function that the compiler inlines it adds it to the list.
func TestInliningIsTested(t *testing.T) {
	claims := 0
	for _, path := range tracked(t, "*.go") {
		if strings.HasSuffix(path, "_test.go") || !strings.Contains(read(t, path), "inlines") {
			continue
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Comments {
			if !strings.Contains(strings.Join(strings.Fields(c.Text()), " "), "compiler inlines") {
				continue
			}
			claims++
			if f := documented(file, c); f == "" || !listed(dir, f) {
				t.Errorf("%s: %q is inlined, a comment says: add it to inlined in inlined_test.go", path, f)
			}
		}
	}
	if claims == 0 {
		t.Error("no comment says of a function that it is inlined")
	}
}

// documented is the function or method whose comment c is, as the compiler writes it.
func documented(file *ast.File, c *ast.CommentGroup) string {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Doc != c {
			continue
		}
		if f.Recv == nil {
			return f.Name.Name
		}
		switch r := f.Recv.List[0].Type.(type) {
		case *ast.StarExpr:
			return "(*" + r.X.(*ast.Ident).Name + ")." + f.Name.Name
		case *ast.Ident:
			return r.Name + "." + f.Name.Name
		}
	}
	return ""
}

func listed(dir, function string) bool { return slices.Contains(inlined[dir], function) }

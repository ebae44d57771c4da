package usage

import (
	"testing"

	"github.com/spf13/cobra"
)

func TestSuggest(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"lst"}, `unknown command "lst" for "prog"; did you mean list?`},
		{[]string{"list", "ad"}, `unknown command "ad" for "prog list"; did you mean add?`},
		{[]string{"list", "--servce", "x"}, "unknown flag: --servce; did you mean --service?"},
		{[]string{"list", "add", "--servce=x"}, "unknown flag: --servce; did you mean --service?"},
		{[]string{"probe", "liev"}, `invalid argument "liev" for "prog probe"; did you mean live?`},
		{[]string{"elephant"}, `unknown command "elephant" for "prog"`},
		{[]string{"list", "--elephant"}, "unknown flag: --elephant"},
		{[]string{"list", "-x"}, "unknown shorthand flag: 'x' in -x"},
		{[]string{"list"}, ""},
	} {
		run := func(*cobra.Command, []string) error { return nil }
		root := &cobra.Command{Use: "prog", Args: cobra.NoArgs, RunE: run, SilenceErrors: true, SilenceUsage: true}
		list := &cobra.Command{Use: "list", Args: cobra.NoArgs, RunE: run}
		list.PersistentFlags().String("service", "", "")
		list.AddCommand(&cobra.Command{Use: "add", Args: cobra.NoArgs, RunE: run})
		root.AddCommand(list, &cobra.Command{Use: "probe", Args: cobra.OnlyValidArgs, RunE: run,
			ValidArgs: []string{"live", "ready"}})
		Suggest(root)
		root.SetArgs(c.args)
		got := ""
		if err := root.Execute(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}

func TestOneOf(t *testing.T) {
	known := []string{"bytes", "packets"}
	for value, want := range map[string]string{
		"bytes": "", "Bytes": "", "byts": "must be one of bytes, packets; did you mean bytes?",
		"colour": "must be one of bytes, packets", "": "must be one of bytes, packets",
	} {
		got := ""
		if err := OneOf(value, known); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

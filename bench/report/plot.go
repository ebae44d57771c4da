package report

import (
	"bytes"
	"fmt"
	"image/color"
	"regexp"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 22 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
)

// palette is Okabe and Ito's eight colours, which people with any kind of colour vision can
// distinguish (Color Universal Design, 2008), without the yellow, which is pale on white. Lines of
// the same colour differ in dashes, and all lines in their marks.
var palette = [...]color.RGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff},
	{0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x00, 0x00, 0x00, 0xff},
}

var dashes = [...][]vg.Length{nil, {6, 3}, {2, 2}, {8, 2, 2, 2}}

var marks = [...]draw.GlyphDrawer{
	draw.CircleGlyph{}, draw.SquareGlyph{}, draw.TriangleGlyph{}, draw.CrossGlyph{}, draw.PlusGlyph{}, draw.RingGlyph{},
	draw.BoxGlyph{},
}

var grey = color.RGBA{0x60, 0x60, 0x60, 0xff}

// svg draws the figure as an SVG document.
func (f *figure) svg() ([]byte, error) {
	p, err := f.plot()
	if err != nil {
		return nil, err
	}
	c := vgsvg.New(plotWidth, plotHeight)
	drawWithLegend(p, draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("plot %s: %w", f.Name, err)
	}
	return screenFonts(out.Bytes()), nil
}

var family = regexp.MustCompile(`font-family:[^;]*;(font-variant:[^;]*;)?`)

// screenFonts lists fonts with the same widths, for readers without the font with which the text
// was measured.
func screenFonts(svg []byte) []byte {
	return family.ReplaceAll(svg, []byte("font-family:Liberation Sans,Arimo,Arial,Helvetica,sans-serif;"))
}

// drawWithLegend draws the legend right of the plot, where it covers no line.
func drawWithLegend(p *plot.Plot, c draw.Canvas) {
	c = draw.Crop(c, 8, -8, 8, -8)
	legend := p.Legend
	legend.Top = true
	width := legend.Rectangle(c).Size().X
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(c, 0, -width-14, 0, 0))
	legend.Draw(draw.Crop(c, c.Max.X-c.Min.X-width, 0, 0, -p.Title.TextStyle.Height("X")-10))
}

// plot makes axes, scales and lines.
func (f *figure) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = f.Title, f.X, f.Y
	for style, size := range map[*text.Style]vg.Length{
		&p.Title.TextStyle: 12, &p.X.Label.TextStyle: 10, &p.Y.Label.TextStyle: 10,
		&p.X.Tick.Label: 9, &p.Y.Tick.Label: 9, &p.Legend.TextStyle: 9,
	} {
		style.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: size}
	}
	p.Title.Padding = 8
	p.Legend.ThumbnailWidth, p.Legend.Padding = 24, 3
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe0}, color.Gray{0xe0}
	p.Add(grid)
	p.Y.Tick.Marker = amounts{}
	err := f.addLines(p)
	if err == nil && f.Target != nil {
		err = f.addTarget(p)
	}
	if err != nil {
		return nil, fmt.Errorf("plot %s: %w", f.Name, err)
	}
	f.scale(p)
	return p, nil
}

// scale chooses the range of the axes, and whether x is logarithmic.
func (f *figure) scale(p *plot.Plot) {
	p.X.Tick.Marker = given(f.xs())
	if p.X.Min > 0 { // a load may be 0
		p.X.Scale = plot.LogScale{}
		p.X.Min, p.X.Max = p.X.Min/1.15, p.X.Max*1.15
	}
	p.Y.Min, p.Y.Max = min(0, p.Y.Min), p.Y.Max*1.08 // from 0, so that lengths are proportional
	if p.Y.Max <= p.Y.Min {
		p.Y.Max = p.Y.Min + 1
	}
}

func (f *figure) addLines(p *plot.Plot) error {
	for _, s := range f.Series {
		pairs := s.pairs()
		if len(pairs) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(pairs)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		line.Color, line.Width, line.Dashes = palette[s.Style%len(palette)], 1.6,
			dashes[s.Style/len(palette)%len(dashes)]
		dots.Color, dots.Shape, dots.Radius = line.Color, marks[s.Style%len(marks)], 3
		p.Add(line, dots)
		p.Legend.Add(s.Name, line, dots)
	}
	return nil
}

func (s *series) pairs() (list plotter.XYs) {
	for _, xy := range s.Pairs {
		list = append(list, plotter.XY{X: xy[0], Y: xy[1]})
	}
	return list
}

// addTarget draws the points' target.
func (f *figure) addTarget(p *plot.Plot) error {
	line, err := plotter.NewLine(plotter.XYs{{X: p.X.Min, Y: *f.Target}, {X: p.X.Max, Y: *f.Target}})
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	line.Color, line.Dashes, line.Width = grey, []vg.Length{4, 4}, 1.2
	p.Add(line)
	p.Legend.Add("bound "+figureText(*f.Target), line)
	return nil
}

func (f *figure) xs() (list []float64) {
	for _, s := range f.Series {
		for _, xy := range s.Pairs {
			list = append(list, xy[0])
		}
	}
	return list
}

//! Drawings as rendered by a real browser.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Flags that disable all network requests of Chromium, and let it run as root.
const SWITCHES: &str = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --force-device-scale-factor=1";

/// A picture of a page.
#[derive(Debug)]
pub struct Screenshot {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Number of bytes of each pixel. The first three are red, green and blue.
    samples: usize,
    bytes: Vec<u8>,
}

/// Renders a drawing in Chromium, in a window of the drawing's size.
///
/// # Panics
/// Panics if Chromium is not installed, or if it creates no picture of the drawing.
pub fn screenshot(drawing: &str) -> Screenshot {
    let directory = tempfile::tempdir().unwrap();
    let (page, picture) = (directory.path().join("drawing.svg"), directory.path().join("picture.png"));
    fs::write(&page, drawing).unwrap();
    let (width, height) = (attribute(drawing, "width"), attribute(drawing, "height"));
    let mut chromium = Command::new("chromium");
    chromium.args(SWITCHES.split_whitespace()).arg(format!("--window-size={width},{height}"));
    chromium.arg(format!("--user-data-dir={}", directory.path().join("profile").display()));
    chromium.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", page.display()));
    let output = chromium.stdin(Stdio::null()).output().expect("chromium, which `cargo xtask setup` installs");
    assert!(output.status.success(), "chromium: {}", String::from_utf8_lossy(&output.stderr));
    Screenshot::read(&picture)
}

/// Returns the number in the first attribute with this name, in the text of an SVG or of one of its elements.
///
/// # Panics
/// Panics if there is none.
pub fn attribute(element: &str, name: &str) -> usize {
    text_attribute(element, name).parse().unwrap_or_else(|_| panic!("{name} is no number: {element}"))
}

/// Returns the text of the first attribute with this name.
///
/// # Panics
/// Panics if there is none.
pub fn text_attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.unwrap_or_else(|| panic!("no {name}: {element}")).0
}

impl Screenshot {
    fn read(file: &Path) -> Self {
        let mut reader = png::Decoder::new(std::io::BufReader::new(fs::File::open(file).unwrap())).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut bytes).unwrap();
        let (width, height) = (frame.width as usize, frame.height as usize);
        Self { width, height, samples: frame.color_type.samples(), bytes }
    }

    /// Returns the colour of a pixel, as `#rrggbb`.
    pub fn colour(&self, x: usize, y: usize) -> String {
        let start = (y * self.width + x) * self.samples;
        let [red, green, blue] = [0, 1, 2].map(|sample| self.bytes[start + sample]);
        format!("#{red:02x}{green:02x}{blue:02x}")
    }
}

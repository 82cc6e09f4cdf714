//! Columns: aligned, and with a head where a person reads them.

use std::io::IsTerminal;

use crate::output::{Failure, Output};

/// Rows of as many cells as there are columns.
pub struct Table<const N: usize> {
    head: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows.
    pub fn new(head: [&'static str; N]) -> Self {
        Self { head, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [impl Into<String>; N]) {
        self.rows.push(cells.map(Into::into));
    }

    /// Prints it; the head only on a terminal, so that programs read rows alone.
    pub fn print(&self, output: &mut Output) -> Result<(), Failure> {
        let head = self.head.map(str::to_owned);
        let head = std::io::stdout().is_terminal().then_some(&head);
        let lines: Vec<&[String; N]> = head.into_iter().chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max();
        let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or_default()).collect();
        for line in &lines {
            let cells: Vec<String> =
                line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            output.line(cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

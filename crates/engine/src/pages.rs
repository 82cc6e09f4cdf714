//! Inputs by the page. A worker outside is handed only so many bytes of what earlier steps have put out; what is larger
//! it reads page by page, for as long as it holds the attempt.

use serde::Serialize;
use sprag_kernel::decide::rows::Fence as KernelFence;
use sprag_kernel::{Code, Refusal};

use crate::callback::Fence;
use crate::engine::Engine;
use crate::limits::MAX_HANDED_BYTES;
use crate::store::{Held, StepPlace, Store};

/// What a directive says of an input that it does not carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LargeInput {
    /// Of its JSON text.
    pub bytes: usize,
}

/// A piece of the JSON text of an input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// It begins at the offset that was asked for, and ends between two characters.
    pub text: String,
    /// Where the next page begins; none after the last one.
    pub next_offset: Option<usize>,
    /// Of the whole text.
    pub bytes: usize,
}

impl Page {
    /// The page of a text that begins at a byte; none if no page can begin there.
    fn of(text: &str, offset: usize, most: usize) -> Option<Self> {
        let rest = text.get(offset..)?;
        let end = (0..=most.min(rest.len())).rev().find(|at| rest.is_char_boundary(*at))?;
        let next_offset = (end < rest.len()).then_some(offset + end);
        Some(Self { text: rest[..end].to_owned(), next_offset, bytes: text.len() })
    }
}

/// Which of some texts are not handed over: the largest, until the others have no more than `most` bytes.
pub(crate) fn too_large(sizes: &[usize], most: usize) -> Vec<bool> {
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|at| sizes[*at]);
    let (mut handed, mut is_large) = (0_usize, vec![false; sizes.len()]);
    for at in by_size {
        handed = handed.saturating_add(sizes[at]);
        is_large[at] = handed > most;
    }
    is_large
}

impl<S: Store> Engine<S> {
    /// A page of an input of the attempt that a worker holds: one of the `large_inputs` of its directive, or any other.
    pub async fn input_page(
        &self,
        fence: &Fence,
        input: &str,
        offset: usize,
    ) -> Result<Page, Refusal> {
        let found = self.store().find(vec![StepPlace::from(fence)]).await?;
        let held = fence.expect_known(found.into_iter().flatten().next())?;
        let Fence { attempt_no, lease_id, .. } = *fence;
        held.attempt.expect_fence(KernelFence { attempt_no, lease_id })?;
        let text = self.input_text(&held, input).await?;
        let invalid = |field: &'static str, reason: String| {
            Refusal::new(Code::CallInvalid).with("field", field).with("reason", reason)
        };
        let unknown = || invalid("input", format!("no step {input} has an output for this one"));
        let text = text.ok_or_else(unknown)?;
        let page = Page::of(&text, offset, MAX_HANDED_BYTES);
        let bytes = text.len();
        page.ok_or_else(|| invalid("offset", format!("no page of {bytes} bytes begins there")))
    }

    /// The output of the step with this name that an attempt is handed.
    async fn input_text(&self, held: &Held, input: &str) -> Result<Option<String>, Refusal> {
        let pinned = self.pinned(&held.facts.protocol_id).await?;
        let graph = &pinned.graph;
        let named = |seen: &u32| graph.node(*seen).publishes.as_deref() == Some(input);
        let Some(node) = graph.inputs(held.key.step_index).find(named) else { return Ok(None) };
        if !held.job.is_graph {
            let output = held.inputs.iter().find(|(seen, _)| *seen == node);
            return Ok(output.map(|(_, text)| text.clone()));
        }
        let wanted = graph.wanted(held.key.place());
        let place = wanted.into_iter().find(|place| place.step_index == node);
        let places = place.map(|place| (held.key.job_id, place)).into_iter().collect();
        let ends = self.store().ends(places).await?;
        Ok(ends.into_iter().flatten().find_map(|end| end.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_and_end_between_characters() {
        let text = "[\"aäö€\"]";
        for most in 3..=text.len() + 1 {
            let (mut whole, mut offset) = (String::new(), Some(0));
            while let Some(at) = offset {
                let page = Page::of(text, at, most).unwrap();
                assert!(!page.text.is_empty() && page.text.len() <= most);
                assert_eq!(page.bytes, text.len());
                whole.push_str(&page.text);
                offset = page.next_offset;
            }
            assert_eq!(whole, text);
        }
        assert_eq!(Page::of(text, 4, 3), None, "in the middle of a character");
        assert_eq!(Page::of(text, 1_000, 3), None, "behind the end");
    }

    #[test]
    fn the_largest_inputs_are_left_out() {
        assert_eq!(too_large(&[5, 1, 4], 10), [false, false, false]);
        assert_eq!(too_large(&[5, 1, 4], 9), [true, false, false]);
        assert_eq!(too_large(&[5, 1, 4], 4), [true, false, true]);
        assert_eq!(too_large(&[], 0), [false; 0]);
    }
}

//! What a state machine is here: a table of legal transitions and a policy.
//!
//! A [`Change`] can only be made by this module, from a row of a table. Whoever holds one holds the
//! proof that the move is legal, so no caller, handler or statement can choose a next state of its
//! own. A table maps (state, trigger) to at most one next state, or it does not compile.

use std::fmt::Debug;

use serde::Serialize;

use crate::error::{Code, Refusal};

/// A state of one of the machines. Implemented by the [`machine!`] macro only.
pub trait State: Copy + Eq + Debug + 'static {
    /// What makes this machine move.
    type Trigger: Copy + Eq + Debug + 'static;

    /// The table that rules this state.
    fn machine() -> &'static Machine<Self>;
    /// The name as users, stores and documents spell it.
    fn name(self) -> &'static str;
    /// The stable small integer of this state.
    fn code(self) -> u8;
    /// No transition leaves a terminal state.
    fn is_terminal(self) -> bool;
    /// The state after `trigger`, if the table has that row.
    fn next(self, trigger: Self::Trigger) -> Option<Self>;
    /// The name of a trigger.
    fn trigger_name(trigger: Self::Trigger) -> &'static str;

    /// The state with this name, if there is one.
    fn from_name(name: &str) -> Option<Self> {
        Self::machine().states.iter().copied().find(|state| state.name() == name)
    }

    /// The state with this code, if there is one.
    fn from_code(code: u8) -> Option<Self> {
        Self::machine().states.iter().copied().find(|state| state.code() == code)
    }

    /// The move that `trigger` makes from this state, or the machine's illegal-move refusal.
    #[inline]
    fn on(self, trigger: Self::Trigger) -> Result<Change<Self>, Refusal> {
        match self.next(trigger) {
            Some(to) => Ok(Change { from: self, to, trigger }),
            None => Err(Self::machine().illegal_trigger(self, trigger)),
        }
    }

    /// A wish for a named state, as an outside caller has it: legal, the same state again, or refused.
    fn wish(self, to: Self) -> Result<Wish<Self>, Refusal> {
        let machine = Self::machine();
        match machine.pair(self, to) {
            Some(row) => Ok(Wish::Legal(row)),
            None if self == to && machine.policy.same_state.forgives(self) => Ok(Wish::Same),
            None => Err(machine.illegal(self, to.name())),
        }
    }
}

/// A legal move, made by the table. Nothing else can build one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Change<S: State> {
    from: S,
    to: S,
    trigger: S::Trigger,
}

impl<S: State> Change<S> {
    /// The state before.
    pub fn from(&self) -> S {
        self.from
    }
    /// The state after.
    #[inline]
    pub fn to(&self) -> S {
        self.to
    }
    /// What made the move.
    pub fn trigger(&self) -> S::Trigger {
        self.trigger
    }
}

/// The answer to [`State::wish`].
#[derive(Clone, Copy, Debug)]
pub enum Wish<S: State> {
    /// The table has this pair.
    Legal(&'static Transition<S>),
    /// The state is there already and the policy calls that a success without change.
    Same,
}

/// One machine: its states, its legal transitions, its policy.
#[derive(Debug)]
pub struct Machine<S: State> {
    /// `request`, `job`, `step`, `outbox` or `seq`.
    pub name: &'static str,
    /// Where every entity starts.
    pub initial: S,
    /// All states, in the order of their codes.
    pub states: &'static [S],
    /// All triggers, in the order of their declaration.
    pub triggers: &'static [S::Trigger],
    /// All legal transitions.
    pub transitions: &'static [Transition<S>],
    /// What the same state again and an illegal move mean.
    pub policy: Policy,
    /// The code of an illegal move.
    pub illegal_code: Code,
}

/// One row of a table.
#[derive(Debug)]
pub struct Transition<S: State> {
    /// The state before.
    pub from: S,
    /// The state after.
    pub to: S,
    /// What may cause it.
    pub triggers: &'static [S::Trigger],
    /// What must hold, in words.
    pub precondition: &'static str,
    /// Where the rule comes from.
    pub origin: Origin,
}

/// Where a transition comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The specification lists it.
    Spec,
    /// The specification's timeouts need it, though its table does not list it.
    Addition,
    /// It exists for graphs only.
    Extension,
}

/// What a machine makes of the two doubtful cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// The same state again.
    pub same_state: SameState,
    /// A move that the table does not have.
    pub illegal: Illegal,
}

/// What the same state again means, unless the table has the self pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SameState {
    /// A success without change.
    NoOp,
    /// A success without change for the holder of the current fence; callers check the fence first.
    NoOpIfFenceMatches,
    /// A success without change in a terminal state, else as illegal as any other pair.
    NoOpIfTerminal,
    /// A conflict.
    Conflict,
}

impl SameState {
    fn forgives<S: State>(self, state: S) -> bool {
        match self {
            Self::NoOp | Self::NoOpIfFenceMatches => true,
            Self::NoOpIfTerminal => state.is_terminal(),
            Self::Conflict => false,
        }
    }
}

/// What an illegal move means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Illegal {
    /// A structured refusal; nothing changes.
    Rejected,
    /// The whole batch stops with a snapshot.
    Fatal,
}

impl<S: State> Machine<S> {
    /// The row for a pair of states.
    pub fn pair(&self, from: S, to: S) -> Option<&'static Transition<S>> {
        S::machine().transitions.iter().find(|row| row.from == from && row.to == to)
    }

    /// Every trigger leads to one state, wherever it is legal; that state is what was attempted.
    #[cold]
    fn illegal_trigger(&self, from: S, trigger: S::Trigger) -> Refusal {
        let row = self.transitions.iter().find(|row| row.triggers.contains(&trigger));
        let attempted = row.expect("a row uses every trigger").to;
        self.illegal(from, attempted.name()).with("trigger", S::trigger_name(trigger))
    }

    #[cold]
    fn illegal(&self, from: S, attempted: &'static str) -> Refusal {
        Refusal::new(self.illegal_code)
            .with("machine", self.name)
            .with("from", from.name())
            .with("to", attempted)
    }

    /// This table without its types, for people and tools.
    pub fn sheet(&self) -> Sheet {
        Sheet {
            name: self.name,
            initial: self.initial.name(),
            states: self.states.iter().map(|state| state.name()).collect(),
            terminal: self.states.iter().filter(|s| s.is_terminal()).map(|s| s.name()).collect(),
            transitions: self.transitions.iter().map(SheetRow::of).collect(),
            policy: self.policy,
        }
    }
}

/// A machine as plain names: what `sprag machines` prints and the documents are made from.
#[derive(Clone, Debug, Serialize)]
pub struct Sheet {
    /// The machine's name.
    pub name: &'static str,
    /// The first state.
    pub initial: &'static str,
    /// All states in order.
    pub states: Vec<&'static str>,
    /// The states that nothing leaves.
    pub terminal: Vec<&'static str>,
    /// All legal transitions.
    pub transitions: Vec<SheetRow>,
    /// The machine's policy.
    pub policy: Policy,
}

/// One transition as plain names.
#[derive(Clone, Debug, Serialize)]
pub struct SheetRow {
    /// The state before.
    pub from: &'static str,
    /// The state after.
    pub to: &'static str,
    /// What may cause it.
    pub triggers: Vec<&'static str>,
    /// What must hold.
    pub precondition: &'static str,
    /// Where the rule comes from.
    pub origin: Origin,
}

impl SheetRow {
    fn of<S: State>(row: &Transition<S>) -> Self {
        Self {
            from: row.from.name(),
            to: row.to.name(),
            triggers: row.triggers.iter().map(|trigger| S::trigger_name(*trigger)).collect(),
            precondition: row.precondition,
            origin: row.origin,
        }
    }
}

/// Declares a machine: its state enum, its trigger enum and its table, written once.
macro_rules! machine {
    (
        $(#[$doc:meta])*
        $State:ident, $Trigger:ident: $name:literal, starts $Initial:ident,
        same $same:ident, illegal $illegal:ident as $code:ident;
        states { $( $(#[$sdoc:meta])* $S:ident = $scode:literal $sname:literal $life:ident ),+ $(,)? }
        triggers { $( $(#[$tdoc:meta])* $T:ident = $tname:literal ),+ $(,)? }
        transitions {
            $( $From:ident > $To:ident on [$($On:ident),+] if $pre:literal, $origin:ident );+ $(;)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $State { $( $(#[$sdoc])* $S = $scode ),+ }

        #[doc = concat!("What moves the ", $name, " machine.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Trigger { $( $(#[$tdoc])* $T ),+ }

        static MACHINE: $crate::machine::Machine<$State> = $crate::machine::Machine {
            name: $name,
            initial: $State::$Initial,
            states: &[$($State::$S),+],
            triggers: &[$($Trigger::$T),+],
            transitions: &[$( $crate::machine::Transition {
                from: $State::$From,
                to: $State::$To,
                triggers: &[$($Trigger::$On),+],
                precondition: $pre,
                origin: $crate::machine::Origin::$origin,
            } ),+],
            policy: $crate::machine::Policy {
                same_state: $crate::machine::SameState::$same,
                illegal: $crate::machine::Illegal::$illegal,
            },
            illegal_code: $crate::error::Code::$code,
        };

        impl $crate::machine::State for $State {
            type Trigger = $Trigger;

            fn machine() -> &'static $crate::machine::Machine<Self> {
                &MACHINE
            }
            fn name(self) -> &'static str {
                match self { $( Self::$S => $sname ),+ }
            }
            #[inline]
            fn code(self) -> u8 {
                self as u8
            }
            // A match, not a search: ledgers decode a state on every transition.
            #[inline]
            fn from_code(code: u8) -> Option<Self> {
                match code { $( $scode => Some(Self::$S), )+ _ => None }
            }
            #[inline]
            fn is_terminal(self) -> bool {
                match self { $( Self::$S => $crate::machine::life::$life ),+ }
            }
            // Two rows for one (state, trigger) would be an unreachable arm, which does not compile.
            #[inline]
            #[deny(unreachable_patterns)]
            fn next(self, trigger: $Trigger) -> Option<Self> {
                match (self, trigger) {
                    $( $( (Self::$From, $Trigger::$On) => Some(Self::$To), )+ )+
                    _ => None,
                }
            }
            fn trigger_name(trigger: $Trigger) -> &'static str {
                match trigger { $( $Trigger::$T => $tname ),+ }
            }
        }

        impl std::fmt::Display for $State {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::machine::State::name(*self))
            }
        }
    };
}
pub(crate) use machine;

/// The words `open` and `terminal` of the tables.
pub(crate) mod life {
    #![allow(non_upper_case_globals)]
    pub(crate) const open: bool = false;
    pub(crate) const terminal: bool = true;
}
